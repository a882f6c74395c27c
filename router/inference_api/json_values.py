"""Finds a few values of a JSON document that comes in chunks, in memory that does not grow with it.

A response may be a few bytes or many megabytes, and only a few numbers in it are needed. So the values
at the wanted paths are kept, and everything else is skipped. All bytes are accepted: in bytes that are
not JSON, values may be found or not, and no error is raised.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias, Union

import msgspec

from warmpath.process.bytes import UNREADABLE

Paths: TypeAlias = Mapping[bytes, Union[str, "Paths"]]
"""The wanted values by key: a name for a value, or the paths within an object or a list of objects."""

MOST_KEY_BYTES = 64
"""A longer key is none of the wanted ones, even if all of its characters are escaped."""
MOST_VALUE_BYTES = 16 << 10
"""A longer value is reported as None."""
MOST_NESTED = 512
"""Most containers within each other; a document with more is not read on."""
MOST_STEPS = 100_000
"""Most strings, brackets and signs that are read one by one, some 0.1 s; a document with more is not
read on. Usual documents take a few hundred: whole members and containers are passed over at once."""

# Groups are atomic, not possessive: those match too much before Python 3.11.5, so in Debian 12's
# (CPython's issue 106052).
_WHOLE_STRING = rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"'
_FLAT = rb'(?>(?:[^"{}\[\]%b]++|' + _WHOLE_STRING + rb")*)"
"""Everything before the next bracket, whole strings included."""
_BEFORE_BRACKET = re.compile(_FLAT % b"", re.DOTALL)
_BEFORE_COMMA = re.compile(_FLAT % b",", re.DOTALL)
LEVELS = 4
"""Containers within each other that are passed over at once."""
_BEFORE_MARK = re.compile(rb'[^"{}\[\],:]*+')
_STRING = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)', re.DOTALL)
_SPACES = b" \t\r\n"


def _nested(levels: int) -> bytes:
    """Return the pattern of everything before a bracket, but for whole containers of so many levels."""
    inner = _FLAT % b""
    for _ in range(levels):
        inner = rb'(?>(?:[^"{}\[\]]++|%b|[{\[]%b[}\]])*)' % (_WHOLE_STRING, inner)
    return inner


_BEFORE_DEEP_BRACKET = re.compile(_nested(LEVELS), re.DOTALL)


@lru_cache(maxsize=64)
def _unwanted(keys: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return the pattern that skips an object's members whose keys are not wanted."""
    space = rb"[ \t\r\n]*+"
    wanted = b"|".join(re.escape(key) for key in sorted(keys))
    key = rb'"(?!(?:%b)")[^"\\]*+"' % wanted
    whole = rb"(?:%b|[{\[]%b[}\]])" % (_WHOLE_STRING, _nested(LEVELS - 1))
    value = rb'(?:[^"{}\[\],:]++|%b%b%b)' % (space, whole, space)
    return re.compile(rb"(?>(?:%b%b%b:%b,)+)" % (space, key, space, value), re.DOTALL)


_OPEN = b"{["


class JsonValues:
    """Reads one document; `found` is called with the name and the raw JSON of each wanted value.

    During that call `start` and `stop` are the value's position in the document.
    """

    def __init__(self, paths: Paths, found: Callable[[str, bytes | None], None]) -> None:
        self.start = self.stop = 0
        self._found = found
        self._read = 0
        """Bytes of the document before the present chunk."""
        self._containers: list[tuple[Paths, bool]] = []
        """The open containers on the way to wanted values, from the outermost one: the paths within it,
        and whether it is a list."""
        self._next: str | Paths | None = paths
        """The name of the next value, or the paths within it; None if the next value is skipped."""
        self._passed = 0
        """Open containers within a skipped container, that one included."""
        self._value: bytearray | None = None
        """The part of a wanted value that has come; empty past MOST_VALUE_BYTES."""
        self._name = ""
        self._is_long = False
        self._depth = 0
        """Open containers within the wanted value."""
        self._steps = 0
        self.is_over = False
        """Whether the document has ended, or cannot be read on."""
        self._is_in_string = self._is_escaped = False
        self._string: bytearray = bytearray()
        """The last string, or its beginning: a key, if a colon comes next."""

    def feed(self, chunk: bytes) -> None:
        """Read the document's next bytes."""
        at = 0
        while at < len(chunk) and not self.is_over:
            self._steps += 1
            self.is_over = self._steps > MOST_STEPS
            if self._is_in_string:
                at = self._string_on(chunk, at)
            elif self._value is not None:
                at = self._value_on(chunk, at)
            elif self._passed:
                at = self._pass_on(chunk, at)
            else:
                at = self._walk_on(chunk, at)
        self._read += len(chunk)

    def _string_on(self, chunk: bytes, at: int) -> int:
        start = at
        if self._is_escaped:
            self._is_escaped = False
            at += 1
        end = _STRING.match(chunk, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if end < len(chunk):
            # A backslash without its byte can only be the last one.
            self._is_escaped = chunk[end : end + 1] == b"\\"
            self._is_in_string = self._is_escaped
            end += 1
        if self._value is not None:
            self._keep(chunk, start, end)
        elif not self._passed and len(self._string) <= MOST_KEY_BYTES:
            self._string += chunk[start : min(end, start + MOST_KEY_BYTES + 2)]
        return end

    def _value_on(self, chunk: bytes, at: int) -> int:
        """Read on within a wanted value, which ends before a comma or a bracket that it did not open."""
        flat = _BEFORE_BRACKET if self._depth else _BEFORE_COMMA
        end = flat.match(chunk, at).end()  # type: ignore[union-attr]
        self._keep(chunk, at, end)
        if end == len(chunk):
            return end
        mark = chunk[end : end + 1]
        if not self._depth and mark in b"}],":
            self.stop = self._read + end
            self._end_value()
            return end
        self._keep(chunk, end, end + 1)
        if mark == b'"':
            self._is_in_string = True
        else:
            self._depth += 1 if mark in _OPEN else -1
            self.is_over |= self._depth > MOST_NESTED
        return end + 1

    def _keep(self, chunk: bytes, start: int, end: int) -> None:
        if self._is_long:
            return
        self._value += chunk[start : min(end, start + MOST_VALUE_BYTES + 1)]  # type: ignore[operator]
        if len(self._value) > MOST_VALUE_BYTES:
            self._is_long = True
            self._value = bytearray()

    def _end_value(self) -> None:
        value, self._value = bytes(self._value or b""), None
        self._next = None
        if self._is_long:
            self._found(self._name, None)
            return
        self.start += len(value) - len(value.lstrip(_SPACES))
        self.stop -= len(value) - len(value.rstrip(_SPACES))
        self._found(self._name, value.strip(_SPACES))

    def _pass_on(self, chunk: bytes, at: int) -> int:
        has_room = self._passed + LEVELS <= MOST_NESTED
        flat = _BEFORE_DEEP_BRACKET if has_room else _BEFORE_BRACKET
        end = flat.match(chunk, at).end()  # type: ignore[union-attr]
        if end == len(chunk):
            return end
        mark = chunk[end : end + 1]
        if mark == b'"':
            self._is_in_string = True
        else:
            self._passed += 1 if mark in _OPEN else -1
            self.is_over |= self._passed > MOST_NESTED
        return end + 1

    def _walk_on(self, chunk: bytes, at: int) -> int:
        """Read on within a container that may hold wanted values."""
        if self._containers and not self._containers[-1][1]:
            members = _unwanted(frozenset(self._containers[-1][0])).match(chunk, at)
            if members:
                self._string.clear()
                self._next = None
                return members.end()
        at = _BEFORE_MARK.match(chunk, at).end()  # type: ignore[union-attr]
        if at == len(chunk):
            return at
        mark = chunk[at : at + 1]
        if mark in _OPEN:
            self._open(is_list=mark == b"[")
        elif not self._containers:
            self.is_over = True
        elif mark == b'"':
            self._is_in_string = True
            self._string.clear()
        elif mark == b":":
            self._colon()
            self.start = self._read + at + 1
        elif mark == b",":
            self._string.clear()
            paths, is_list = self._containers[-1]
            self._next = paths if is_list else None
        else:
            self._containers.pop()
            self._next = None
            self.is_over |= not self._containers
        return at + 1

    def _colon(self) -> None:
        key = bytes(self._string[:-1])
        if b"\\" in key:
            try:
                key = msgspec.json.decode(b'"%b"' % key, type=str).encode()
            except UNREADABLE:
                key = b""
        self._next = self._containers[-1][0].get(key)
        if isinstance(self._next, str):
            self._name = self._next
            self._value, self._is_long, self._depth = bytearray(), False, 0

    def _open(self, *, is_list: bool) -> None:
        wanted, self._next = self._next, None
        self.is_over |= len(self._containers) >= MOST_NESTED
        is_list_in_list = is_list and (not self._containers or self._containers[-1][1])
        if wanted is None or isinstance(wanted, str) or is_list_in_list:
            self._passed = 1
            return
        self._containers.append((wanted, is_list))
        if is_list:
            self._next = wanted
