"""Reloading the configuration: a running router takes over the keys that are marked as reloadable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Meta

from warmpath.process.reread import LOOK_SECONDS, read_bytes
from warmpath.router.config.mistakes import dotted, doubts
from warmpath.router.config.read import MOST_BYTES, ConfigError, check
from warmpath.router.config.schema import Config, Table

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Table)


def content_of(path: Path) -> bytes | None:
    """Return a file's bytes; None if it cannot be read again, as a pipe cannot."""
    try:
        return read_bytes(path, MOST_BYTES)
    except OSError:
        return None


class Reloader:
    """Keeps a running router at its file, as far as the keys that differ are reloadable.

    `read` reads and checks the file, and raises ConfigError. `apply` takes over the configuration.
    `content` returns the file's bytes (`content_of`); `begun` are the bytes that `config` was read from.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        apply: Callable[[Config], Awaitable[None]],
        *,
        content: Callable[[], bytes | None],
        begun: bytes | None,
    ) -> None:
        self._config = config
        """The configuration that is in force."""
        self._read = read
        self._apply = apply
        self._content = content
        self._tried = begun
        """The file's bytes when the configuration was read last."""

    async def watch(
        self, asked: asyncio.Event, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Set `asked` when the file has other bytes than those that were read last, until cancelled.

        Two looks must find the same bytes, since an editor may still be writing. Times and inodes do not
        count: Kubernetes replaces a symbolic link above a ConfigMap's files.
        """
        before = self._tried
        while True:
            await sleep(LOOK_SECONDS)
            found = await asyncio.to_thread(self._content)
            if found == before and found != self._tried:
                asked.set()
            before = found

    async def run(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            await self.reload()

    async def reload(self) -> None:
        """Take over what can be taken over, and say in the log what was and what was not.

        A file with any error changes nothing.
        """
        self._tried = await asyncio.to_thread(self._content)
        try:
            read = await asyncio.to_thread(self._read)
            merged = reloaded(self._config, read)
            # Keys that need a restart stay as they are, and may contradict those that are taken over.
            check(merged)
        except ConfigError as error:
            problems = "; ".join(error.problems)
            log.error("the configuration is not reloaded, nothing has changed: %s", problems)  # noqa: TRY400
            return
        keys = list(differing(self._config, read))
        taken = [key for key, is_reloadable in keys if is_reloadable]
        refused = [key for key, is_reloadable in keys if not is_reloadable]
        if taken:
            await self._apply(merged)
            self._config = merged
        log.info("the configuration is reloaded: %s", ", ".join(taken) or "nothing to take over")
        for at, doubt in doubts(self._config):
            log.warning("the configuration: %s: %s", dotted(at), doubt)
        if refused:
            needs = "needs" if len(refused) == 1 else "need"
            log.warning("%s %s a restart", ", ".join(refused), needs)


def is_reloadable(field: msgspec.structs.FieldInfo) -> bool:
    """Return whether a running router can take another value of a table's field."""
    marks = [mark for mark in getattr(field.type, "__metadata__", ()) if isinstance(mark, Meta)]
    return any(mark.extra and mark.extra.get("reloadable") for mark in marks)


def differing(old: Table, new: Table, at: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the keys that differ between two tables of one type, and whether each is reloadable."""
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if isinstance(before, Table) and not is_reloadable(field):
            yield from differing(before, after, f"{at}{field.encode_name}.")
        else:
            yield at + field.encode_name, is_reloadable(field)


def reloaded(old: T, new: T) -> T:
    """Return `old` with the reloadable keys of `new`."""
    taken = {}
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if is_reloadable(field):
            taken[field.name] = after
        elif isinstance(before, Table):
            taken[field.name] = reloaded(before, after)
    return msgspec.structs.replace(old, **taken)
