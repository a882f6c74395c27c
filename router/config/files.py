"""Reads the TLS files of [server.tls], [watch] and [probe], and engines' API keys.

TLS files of Redis are read in `indexer.shared.redis.connect`, and only checked here. All files are
relative to the folder of the configuration.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from warmpath.indexer.follow.instance import EngineTls
from warmpath.process.command_line import in_words
from warmpath.process.reread import problem_of, read_bytes
from warmpath.process.tls import ClientTls, ServerTls, TlsFilesError, TlsPaths, Validity, whole
from warmpath.router.config import schema as config
from warmpath.router.config.form import Path as KeyPath
from warmpath.router.config.form import Problem
from warmpath.router.config.schema import Config


def tls_files(settings: config.Config) -> Iterator[tuple[tuple[str, ...], str, str, str, str]]:
    """Yield each table with TLS files: its path, its key for the authority, and its ca, cert and key."""
    tls = settings.server.tls
    yield ("server", "tls"), "client-ca", tls.client_ca, tls.cert, tls.key
    for name, table in (
        ("watch", settings.watch),
        ("probe", settings.probe),
        ("shared-index", settings.shared_index),
    ):
        yield (name,), "ca", table.ca, table.cert, table.key


def tls_problems(settings: config.Config, folder: Path) -> Iterator[Problem]:
    """Yield each TLS file that cannot be used."""
    for at, authority, ca, cert, key in tls_files(settings):
        missing = set()
        for name, file in ((authority, ca), ("cert", cert), ("key", key)):
            if file and (problem := problem_of(folder / file)):
                missing.add(file)
                yield (*at, name), problem
        for name, files in ((authority, [ca]), ("cert", ["", cert, key])):
            if all(files[-1:]) and not missing & {*files}:
                try:
                    _paths(folder, *files).context(ssl.Purpose.SERVER_AUTH)
                except TlsFilesError as error:
                    yield (*at, name), error.problem


def server_tls(table: config.ServerTlsTable, folder: Path) -> ServerTls | None:
    """Return the listeners' TLS; None for plain connections. Raises OSError, which names the key."""
    if not table.cert:
        return None
    paths = _paths(folder, table.client_ca, table.cert, table.key)
    try:
        return ServerTls("server.tls", paths, http_optional=True)
    except TlsFilesError as error:
        key = "client-ca" if error.part == "ca" else error.part
        raise OSError(f"server.tls.{key}: {error.problem}") from error


def publisher_credentials(table: config.WatchTable, folder: Path) -> ClientTls | None:
    """Return the TLS to publishers; None for plain connections. Raises OSError, which names the key."""
    return _client_tls("watch", table, folder) if table.ca else None


def engine_credentials(table: config.ProbeTable, folder: Path) -> EngineTls:
    """Return the TLS to engines that serve HTTPS. Raises OSError, which names the key."""
    return EngineTls(_client_tls("probe", table, folder), table.server_name or None)


def _client_tls(name: str, table: config.WatchTable | config.ProbeTable, folder: Path) -> ClientTls:
    try:
        return ClientTls(name, _paths(folder, table.ca, table.cert, table.key))
    except TlsFilesError as error:
        raise OSError(f"{name}.{error.part}: {error.problem}") from error


def _paths(folder: Path, *names: str) -> TlsPaths:
    return TlsPaths(*(folder / name if name else None for name in names))


SOON = timedelta(days=14)
"""A certificate that ends within this time gets a warning."""


class Dated(NamedTuple):
    """A file of certificates, and the time in which it can be used."""

    at: KeyPath
    path: Path
    validity: Validity

    def problem(self, now: datetime) -> str:
        """Return why the file is not valid at `now`; empty if it is."""
        if self.validity.ends <= now:
            return f"{self.path} has ended, on {_day(self.validity.ends)}"
        if self.validity.begins > now:
            return f"{self.path} does not begin before {_day(self.validity.begins)}"
        return ""

    def warning(self, now: datetime) -> str:
        """Return how soon it ends; empty if that is later than SOON."""
        left = self.validity.ends - now
        if left > SOON:
            return ""
        days = "tomorrow or today" if left.days < 1 else f"in {left.days} days"
        return f"{self.path} ends {days}, on {_day(self.validity.ends)}"


def dated(config: Config, folder: Path) -> Iterator[Dated]:
    """Yield each file of certificates that can be read."""
    for at, authority, ca, cert, _ in tls_files(config):
        for part, name, file in (("ca", authority, ca), ("cert", "cert", cert)):
            with suppress(OSError, ValueError):
                if file and (validity := whole(part, read_bytes(folder / file))):
                    yield Dated((*at, name), folder / file, validity)


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d")


class EngineKeyError(ValueError):
    """A file has no key that can be sent."""


def read_engine_key(path: Path) -> str:
    """Return the key in a file. Raises EngineKeyError."""
    try:
        return engine_key_of(path, read_bytes(path))
    except OSError as error:
        reason = in_words(error).removeprefix(f"{path}: ")
        raise EngineKeyError(f"there is no key in {path}: {reason}") from error


def engine_key_of(path: Path, content: bytes) -> str:
    """Return the key, the only word in the `content` of the file `path`. Raises EngineKeyError."""
    words = content.split()
    # A header's value may have no control characters.
    if len(words) != 1 or not all(0x21 <= byte <= 0x7E for byte in words[0]):
        raise EngineKeyError(f"there is no key in {path}: it must be one word of printable ASCII")
    return words[0].decode("ascii")


REFUSALS = frozenset({401, 403})
"""HTTP statuses of an engine, or of a proxy before it, that refuses a request for its key."""


class EngineKey:
    """The key in a file, read before it is first sent, and again after the engine has refused it."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is None for an engine that asks for no key."""
        self._path = path
        self._key = ""
        self._problem = ""

    async def headers(self) -> Mapping[str, str]:
        if not self._key:
            await self.read_again()
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    async def read_again(self) -> bool:
        """Read the file; return whether it has another key than before. Raises nothing."""
        before = self._key
        try:
            if self._path is not None:
                self._key = await asyncio.to_thread(read_engine_key, self._path)
            self._problem = ""
        except EngineKeyError as error:
            self._problem = str(error)
        return self._key != before

    def advice(self) -> str:
        """Return the reason of a refusal and the remedy, as a sentence."""
        if self._problem:
            return f"key-file cannot be used: {self._problem}"
        if self._path is None:
            return "the engine wants its API key: name a file with it in the pod's key-file"
        return f"the engine refuses the key in {self._path}: put its API key into that file"
