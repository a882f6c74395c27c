"""Reads the TLS files of [server.tls], [watch] and [probe].

Those of Redis are read in `indexer.shared.redis.connect`, and only checked here.
"""

import ssl
from collections.abc import Iterator
from pathlib import Path

from warmpath.indexer.follow.engine_tls import EngineTls
from warmpath.process.reread import problem_of
from warmpath.process.tls import ClientTls, ServerTls, TlsFilesError, TlsPaths
from warmpath.router.config import schema as config
from warmpath.router.config.form import Problem


class CredentialsError(OSError):
    """A file cannot be used; `at` is the path of the key that names the file."""

    def __init__(self, at: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{'.'.join(at)}: {problem}")
        self.at = at
        self.problem = problem


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
    """Yield each TLS file that cannot be used; files are relative to `folder`."""
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
    """Return the TLS of the listeners; None for plain connections.

    Files are relative to `folder`. Raises CredentialsError.
    """
    if not table.cert:
        return None
    paths = _paths(folder, table.client_ca, table.cert, table.key)
    try:
        return ServerTls("server.tls", paths, http_optional=True)
    except TlsFilesError as error:
        key = "client-ca" if error.part == "ca" else error.part
        raise CredentialsError(("server", "tls", key), error.problem) from error


def publisher_credentials(table: config.WatchTable, folder: Path) -> ClientTls | None:
    """Return the TLS of connections to publishers; None for plain connections.

    Files are relative to `folder`. Raises CredentialsError.
    """
    return _client_tls("watch", table, folder) if table.ca else None


def engine_credentials(table: config.ProbeTable, folder: Path) -> EngineTls:
    """Return the TLS of connections to engines that serve HTTPS.

    Files are relative to `folder`. Raises CredentialsError.
    """
    return EngineTls(_client_tls("probe", table, folder), table.server_name or None)


def _client_tls(name: str, table: config.WatchTable | config.ProbeTable, folder: Path) -> ClientTls:
    try:
        return ClientTls(name, _paths(folder, table.ca, table.cert, table.key))
    except TlsFilesError as error:
        raise CredentialsError((name, error.part), error.problem) from error


def _paths(folder: Path, *names: str) -> TlsPaths:
    return TlsPaths(*(folder / name if name else None for name in names))
