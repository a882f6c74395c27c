"""Files that are read again when they change, such as certificates and tokens.

No error has any part of a token.
"""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from warmpath.process.command_line import in_words

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Pause between two looks at the files."""
MOST_BYTES = 1 << 20
"""The most bytes of a file."""

KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFLNK: "a link",
}  # fmt: skip
"""Words for a path that is no regular file, by its type in `st_mode`."""


class Reread(Generic[T]):
    """A value made from files; each `look` makes it again if they have changed.

    `make` gets the files' contents, in the order of `paths`, and returns the value. Any thread may read
    `value`. `name` is for the log, which never has a file's content.
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


def read_bytes(path: Path, most: int = MOST_BYTES, *, of_any_kind: bool = False) -> bytes:
    """Return a file's bytes. Raises OSError if it cannot be read or has more than `most`.

    Unless `of_any_kind`, anything but a regular file raises it, too: a pipe gives its bytes once, after
    a wait that may have no end, and a device may always have more of them.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG and not of_any_kind:
        said = KINDS.get(kind, "of another kind")
        raise OSError(errno.EINVAL, f"is {said}, not a file", str(path))
    # What takes the file's place between the two steps is not waited for either.
    waits = 0 if of_any_kind else os.O_NONBLOCK
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | waits)) as file:
        content = file.read(most + 1)
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
    return content


def problem_of(path: Path) -> str:
    """Return why a file cannot be read again and again; empty if it can."""
    try:
        read_bytes(path)
    except FileNotFoundError:
        return f"there is no file {path}"
    except OSError as error:
        return in_words(error)
    return ""


async def keep_current(files: Sequence[Reread[Any]], *, seconds: float = LOOK_SECONDS) -> None:
    """Look at all the files every `seconds`, until cancelled."""
    while files:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(_look, files)
    await asyncio.Event().wait()


def _look(files: Sequence[Reread[Any]]) -> None:
    for one in files:
        one.look()


LEAST_TOKEN = 16
MOST_TOKEN = 4096


class TokenError(ValueError):
    """A file has no token that can be used."""


def read_token(path: Path) -> str:
    """Return the token in a file. Raises TokenError."""
    try:
        return token_of(read_bytes(path))
    except OSError as error:
        needs = f"the file must have a token, one line of {LEAST_TOKEN} to {MOST_TOKEN} bytes"
        raise TokenError(f"{in_words(error)}; {needs}") from error
    except TokenError as error:
        raise TokenError(f"{path} {error}") from None


def token_of(content: bytes) -> str:
    """Return the token in a file's content, one line. Raises TokenError."""
    token = content.strip(b"\r\n")
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise TokenError(
            f"has {len(token)} bytes in its line; a token has {LEAST_TOKEN} to {MOST_TOKEN}"
        )
    # A header's value, which may have no other characters.
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise TokenError("is not one line of printable ASCII without spaces")
    return token.decode("ascii")
