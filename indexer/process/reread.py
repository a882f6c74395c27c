"""Files that are read again when they change, such as certificates and tokens."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from indexer.process.command_line import in_words

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Pause between two looks at the files."""
MOST_BYTES = 1 << 20
"""Largest file."""


class Reread(Generic[T]):
    """The value of some files, read again when they change.

    `make` makes the value of the files' contents, in the order of `paths`. Any thread may read `value`.
    `name` is for the log, which never has a file's content.
    """

    def __init__(
        self, name: str, paths: Sequence[Path], make: Callable[[Sequence[bytes]], T]
    ) -> None:
        """Read the files. Raises OSError, and whatever `make` raises."""
        self._name = name
        self._paths = tuple(paths)
        self._make = make
        self._contents = self._read()
        self.value = make(self._contents)
        self._problem = ""
        """What was wrong at the last look."""
        self._said = ""
        """The problem that was logged last."""

    def look(self) -> None:
        """Read the files; if they have changed and can be used, make their new value.

        Otherwise the old value stays. A problem is logged once, when two looks in a row have found it:
        a certificate and its key are rarely replaced at the same instant.
        """
        try:
            contents = self._read()
            if contents == self._contents:
                self._problem = self._said = ""
                return
            value = self._make(contents)
            if contents != self._read():
                # `make` may have read the files itself, while they were being replaced.
                return
        except (OSError, ValueError) as error:
            problem = in_words(error)
            if problem == self._problem and problem != self._said:
                self._said = problem
                log.error("%s: %s; what was read before stays in use", self._name, problem)  # noqa: TRY400
            self._problem = problem
            return
        self._contents, self.value = contents, value
        self._problem = self._said = ""
        log.info("%s: read again after a change", self._name)

    def _read(self) -> tuple[bytes, ...]:
        return tuple(read_bytes(path) for path in self._paths)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's bytes. Raises OSError if it cannot be read or has more than `most`."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"{path} has more than {most} bytes")
    return content


async def keep_current(files: Sequence[Reread[Any]], *, seconds: float = LOOK_SECONDS) -> None:
    """Look at all the files every `seconds`, until cancelled."""
    while files:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(_look, files)
    await asyncio.Event().wait()


def _look(files: Sequence[Reread[Any]]) -> None:
    for one in files:
        one.look()
