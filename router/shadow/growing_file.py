"""Follows a file to which another process appends lines, also where it is renamed or truncated."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

REST_SECONDS = 10.0
"""A renamed file that has not grown for so long is left: its writer has opened the new one."""
MOST_BYTES = 8 << 20
"""Bytes of each file that one call reads."""
MOST_LINE_BYTES = 64 << 20
"""The longest line; the beginning of a longer one comes as a line, and the rest of it is left out."""
SHOWN_BYTES = 1024


class Line(NamedTuple):
    """A line without its break."""

    at: int
    """The byte of its file at which it begins."""
    content: bytes


class _Opened:
    """A file that is open, and the beginning of a line whose end is not written yet."""

    def __init__(self, file: BinaryIO, now: float) -> None:
        self.file = file
        self.grown_at = now
        self._rest = bytearray()
        self._is_skipping = False

    def skip(self) -> None:
        """Leave out all lines that have begun."""
        if self.file.seek(0, os.SEEK_END):
            self.file.seek(-1, os.SEEK_END)
            self._is_skipping = self.file.read(1) != b"\n"

    def lines(self, now: float) -> list[Line]:
        """Return the lines that have ended since the last call, in order."""
        if os.fstat(self.file.fileno()).st_size < self.file.tell():
            self.file.seek(0)
            self._rest.clear()
        begun, at = len(self._rest), self.file.tell() - len(self._rest)
        read = self.file.read(MOST_BYTES)
        if not read:
            return []
        self.grown_at = now
        self._rest += read
        if (end := self._rest.rfind(b"\n", begun)) < 0:
            return self._cut(at)
        lines = []
        for content in bytes(self._rest[:end]).split(b"\n"):
            lines.append(Line(at, content))
            at += len(content) + 1
        del self._rest[: end + 1]
        if self._is_skipping:
            self._is_skipping = False
            del lines[0]
        return lines + self._cut(at)

    def _cut(self, at: int) -> list[Line]:
        """Return the beginning of a line that is too long, once, and drop what there is of it."""
        if len(self._rest) <= MOST_LINE_BYTES and not self._is_skipping:
            return []
        begun = [] if self._is_skipping else [Line(at, bytes(self._rest[:SHOWN_BYTES]))]
        self._is_skipping = True
        self._rest.clear()
        return begun

    def close(self) -> list[Line]:
        """Return the last line, if it has no break."""
        at = self.file.tell() - len(self._rest)
        self.file.close()
        return [] if self._is_skipping or not self._rest else [Line(at, bytes(self._rest))]


class GrowingFile:
    """Reads the lines that are appended to the file with one name. `clock` returns seconds.

    A renamed file is read on for a while beside the new one. Where a file is truncated, it is read again
    from its beginning. What is appended and then truncated, or renamed twice, between two calls is lost.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Leave out the lines that are there already."""
        self._path = path
        self._clock = clock
        self._opened: list[_Opened] = []
        """The files of the name, the newest last."""
        self._open(at_end=True)

    def _open(self, *, at_end: bool) -> None:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        opened = _Opened(file, self._clock())
        if at_end:
            opened.skip()
        self._opened.append(opened)

    def read(self) -> list[Line]:
        """Return the next lines, none if there are no new ones. Raises OSError."""
        now = self._clock()
        lines = [line for opened in self._opened for line in opened.lines(now)]
        if self._is_new():
            self._open(at_end=False)
            lines += self._opened[-1].lines(now) if self._opened else []
        for opened in self._opened[:-1]:
            if now - opened.grown_at > REST_SECONDS:
                self._opened.remove(opened)
                lines += opened.close()
        return lines

    def _is_new(self) -> bool:
        """Return whether the name stands for another file than the newest that is open."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return not self._opened or not os.path.samestat(
            there, os.fstat(self._opened[-1].file.fileno())
        )

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
