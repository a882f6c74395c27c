"""Finds a few values of a JSON document that comes in chunks, in memory that does not grow with it.

A response may be a few bytes or many megabytes, and only a few numbers in it are needed. So the values
at the wanted paths are kept, and everything else is skipped. All bytes are accepted: in bytes that are
not JSON, values may be found or not, and no error is raised.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, Union

import msgspec

from warmpath.process.bytes import UNREADABLE

Paths: TypeAlias = Mapping[bytes, Union[str, "Paths"]]
"""The wanted values by key: a name for a value, or the paths within an object or a list of objects."""

MOST_KEY_BYTES = 384
"""A longer key is none of the wanted ones, even if all of its characters are escaped."""
MOST_VALUE_BYTES = 16 << 10
"""A longer value is reported as None."""
MOST_STEPS = 100_000
"""Most strings, brackets and signs that are read one by one, some 0.1 s; a document with more is not
read on. Usual documents take a few hundred: whole containers are passed over at once."""
LEVELS = 8
"""Most containers within each other that are passed over at once, or that a wanted value has."""

# Groups are atomic, not possessive: those match too much before Python 3.11.5, so in Debian 12's
# (CPython's issue 106052).
_WHOLE_STRING = rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"'


def _before(marks: bytes, levels: int) -> bytes:
    """Return the pattern of everything before one of some marks, or a bracket that is not closed.

    Whole strings are passed over, and whole containers of so many levels.
    """
    within = rb"|[{\[]%b[}\]]" % _before(b"", levels - 1) if levels else b""
    return rb'(?>(?:[^"{}\[\]%b]++|%b%b)*)' % (marks, _WHOLE_STRING, within)


_STRING = re.compile(_WHOLE_STRING, re.DOTALL)
_VALUE = re.compile(_before(b",", LEVELS), re.DOTALL)
_UNWANTED = re.compile(_before(b"", LEVELS), re.DOTALL)
_BEFORE_MARK = re.compile(rb'[^"{}\[\],:]*+')
_OPEN = b"{["
_SPACES = b" \t\r\n"
_LONG_STRING = b'"'.ljust(MOST_KEY_BYTES + 2, b"x")
"""Takes the place of a long string's beginning."""


class JsonValues:
    """Reads one document; `found` is called with each wanted value: its name, raw JSON and position."""

    def __init__(self, paths: Paths, found: Callable[[str, bytes | None, int], None]) -> None:
        self.is_over = False
        """Whether the document has ended, or cannot be read on."""
        self._found = found
        self._read = 0
        """Bytes of the document that have come."""
        self._rest = b""
        """The last of those bytes, which are no whole string or wanted value yet."""
        self._containers: list[tuple[Paths, bool]] = []
        """The open containers on the way to wanted values, from the outermost one: the paths within it,
        and whether it is a list."""
        self._next: str | Paths | None = paths
        """The name of the next value, or the paths within it; None if the next value is skipped."""
        self._passed = 0
        """Open containers within a skipped container, that one included."""
        self._steps = 0
        self._key = b""
        """The last string: a key, if a colon comes next."""

    def feed(self, chunk: bytes) -> None:
        if self.is_over:
            return
        self._read += len(chunk)
        self._rest += chunk
        at, before = 0, -1
        while before < at < len(self._rest) and not self.is_over:
            before, at = at, self._step(at)
            self._steps += before < at
            self.is_over |= self._steps > MOST_STEPS
        self._rest = b"" if self.is_over else self._rest[at:]
        if len(self._rest) > len(_LONG_STRING) and not isinstance(self._next, str):
            # It is the beginning of a string, of which only the last backslash matters.
            escapes = len(self._rest) - len(self._rest.rstrip(b"\\"))
            self._rest = _LONG_STRING + b"\\" * (escapes % 2)

    def _step(self, at: int) -> int:
        """Read one part of the rest; return where the next begins, or `at` if the part is not whole."""
        rest = self._rest
        if isinstance(self._next, str):
            return self._take(at)
        before = _UNWANTED if self._passed else _BEFORE_MARK
        end = before.match(rest, at).end()  # type: ignore[union-attr]  # it matches nothing too
        mark = rest[end : end + 1]
        if mark == b'"' and (self._passed or self._containers):
            if (string := _STRING.match(rest, end)) is None:
                return end
            self._key, end = string[0][: MOST_KEY_BYTES + 2], string.end() - 1
        elif mark and self._passed:
            self._passed += 1 if mark in _OPEN else -1
        elif mark and mark in _OPEN:
            self._open(is_list=mark == b"[")
        elif mark and not self._containers:
            self.is_over = True
        elif mark == b":":
            self._next = self._containers[-1][0].get(_decoded(self._key))
        elif mark == b",":
            paths, is_list = self._containers[-1]
            self._next, self._key = paths if is_list else None, b""
        elif mark:
            self._containers.pop()
            self._next = None
            self.is_over = not self._containers
        return end + len(mark)

    def _take(self, at: int) -> int:
        """Report the wanted value, which ends before a comma or a bracket that it did not open."""
        assert isinstance(self._next, str)
        raw = _VALUE.match(self._rest, at)[0]  # type: ignore[index]
        end = at + len(raw)
        is_whole = self._rest[end : end + 1] in (b",", b"}", b"]")
        if (end if is_whole else len(self._rest)) - at > MOST_VALUE_BYTES:
            self._found(self._next, None, at)
            self._next = None
            return self._step(at)
        if not is_whole:
            return at
        begin = self._read - len(self._rest) + end - len(raw.lstrip(_SPACES))
        name, self._next = self._next, None
        self._found(name, raw.strip(_SPACES), begin)
        return end

    def _open(self, *, is_list: bool) -> None:
        wanted, self._next = self._next, None
        is_list_in_list = is_list and (not self._containers or self._containers[-1][1])
        if wanted is None or isinstance(wanted, str) or is_list_in_list:
            self._passed = 1
            return
        self._containers.append((wanted, is_list))
        if is_list:
            self._next = wanted


def _decoded(key: bytes) -> bytes:
    """Return a key without its quotes and escapes; empty for one that is too long."""
    if b"\\" not in key:
        return key[1:-1]
    try:
        return msgspec.json.decode(key, type=str).encode()
    except UNREADABLE:
        return b""
