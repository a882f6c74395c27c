"""Decodes the strings of a large JSON document in slices, apart from the rest of it.

A decoder takes milliseconds per megabyte in one call, and nearly all of a large body is strings. So the
strings are taken out of the document: a short stand-in takes the place of each, and once the document is
decoded, `Strings.put_back` puts them back. The library's decoder decodes the strings too.
"""

import asyncio
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from warmpath.process.bytes import UNREADABLE

SLICE_BYTES = 32 << 10
"""Bytes that are processed without a pause: about a millisecond's work."""
LARGE_BYTES = 256 << 10
"""Decoding more bytes in one call takes milliseconds."""
SHORT_BYTES = 64
"""A string of fewer bytes stays in the document."""
VALUES_AT_ONCE = 2048
"""Values that are visited without a pause while strings are put back."""

_MARK = secrets.token_hex(8)
"""Begins each stand-in. Each process draws its own, so that no caller can write a stand-in."""
_QUOTE = re.compile(b'"')
_BREAK = re.compile(rb"[\s,:\[\]{}\"]")
"""Bytes that end a number."""
_SPACES = re.compile(rb"[ \t\r\n]{2,}")
_PAIR_BYTES = len(rb"\ud83d\ude00")
"""The longest sequence of bytes that is one character."""
_FIRST_OF_PAIR = re.compile(rb"\\u[dD][89abAB]..\Z")


class FieldError(Exception):
    """A body or one of its fields is refused; `field` is empty for the body itself."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class FieldLimitError(FieldError):
    """A body or one of its fields has too many values, or a value that is too long."""


class Strings:
    """The strings that were taken out of a document."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    async def put_back(self, value: Any) -> Any:
        """Return a decoded value in which the strings replace their stand-ins."""
        if not self._texts:
            return value
        whole = [value]
        left: list[Any] = [whole]
        passed = 0
        while left:
            one = left.pop()
            if isinstance(one, dict):
                members = [*one.items()]
                one.clear()
            else:
                members = [*enumerate(one)]
            for name, inner in members:
                one[self._text(name)] = self._text(inner)
                if isinstance(inner, dict | list):
                    left.append(inner)
                passed += 1
                if not passed % VALUES_AT_ONCE:
                    await asyncio.sleep(0)
        return whole[0]

    def _text(self, value: Any) -> Any:
        return self._texts.get(value, value) if isinstance(value, str) else value


NONE = Strings({})
"""No string was taken out."""


class _Document:
    def __init__(self, raw: bytes, kept: Collection[str]) -> None:
        self._raw = raw
        self._kept = kept
        self._parts: list[bytes] = []
        self._copied = 0
        """Number of the document's leading bytes that are in `_parts`, or replaced there."""
        self._waiting: list[bytes] = []
        """Strings, in quotes, that are yet to be decoded; each has its place in `_parts`."""
        self._places: list[int] = []
        self._bytes = 0
        self.texts: dict[str, str] = {}

    def copy(self, stop: int) -> None:
        """Copy the document up to `stop`, with one space in the place of several."""
        self._parts.append(_SPACES.sub(b" ", self._raw[self._copied : stop]))
        self._copied = stop

    async def take(self, start: int, stop: int) -> None:
        """Take out the string whose quotes are at `start` and `stop` - 1."""
        self.copy(start)
        self._parts.append(b"")
        self._copied = stop
        place = len(self._parts) - 1
        if stop - start > SLICE_BYTES:
            self._put(place, await _long(self._raw, start + 1, stop - 1))
            return
        self._waiting.append(self._raw[start:stop])
        self._places.append(place)
        self._bytes += stop - start
        if self._bytes > SLICE_BYTES:
            self._decode()
            await asyncio.sleep(0)

    def _decode(self) -> None:
        texts: Sequence[str | bytes]
        try:
            texts = msgspec.json.decode(b"[" + b",".join(self._waiting) + b"]", type=list[str])
        except UNREADABLE:
            texts = [_text(one) for one in self._waiting]
        for place, text in zip(self._places, texts, strict=True):
            self._put(place, text)
        self._waiting, self._places, self._bytes = [], [], 0

    def _put(self, place: int, text: str | bytes) -> None:
        if isinstance(text, bytes):
            # It is not a JSON string: decoding the document reports this if the value is needed.
            self._parts[place] = text
        elif text in self._kept:
            self._parts[place] = msgspec.json.encode(text)
        else:
            name = f"{_MARK}{place:x}"
            self.texts[name] = text
            self._parts[place] = f'"{name}"'.encode()

    def end(self) -> bytes:
        """Return the document with stand-ins."""
        self._decode()
        return b"".join(self._parts)


async def take_out(raw: bytes, most: int, kept: Collection[str] = ()) -> tuple[bytes, Strings]:
    """Return a document with stand-ins for its strings, and the strings; those in `kept` stay.

    The returned document is valid JSON if and only if `raw` is. Raises FieldError if `raw`
    ends within a string, and FieldLimitError if it has more than `most` strings, or a number that fills
    a whole slice.
    """
    document = _Document(raw, kept)
    at, opened, strings = 0, -1, 0
    while at < len(raw):
        piece = raw[at : at + SLICE_BYTES]
        if at + SLICE_BYTES < len(raw):
            piece = _whole(piece)
        if b"\\" in piece:
            piece = _without_escapes(piece)
        for quote in _QUOTE.finditer(piece):
            here = at + quote.start()
            if opened < 0:
                opened = here
                continue
            if here - opened > SHORT_BYTES:
                await document.take(opened, here + 1)
            opened = -1
            strings += 1
        at += len(piece)
        if opened < 0:
            if len(piece) >= SLICE_BYTES and not _BREAK.search(piece):
                raise FieldLimitError(f"holds a number of more than {SLICE_BYTES} bytes")
            document.copy(at)
        if strings > most:
            raise FieldLimitError(f"holds more than {most} strings")
        await asyncio.sleep(0)
    if opened >= 0:
        raise FieldError("is not JSON: it ends within a string")
    return document.end(), Strings(document.texts)


async def _long(raw: bytes, start: int, stop: int) -> str | bytes:
    """Return the text of a string, decoded in slices of whole characters, or a slice with a fault.

    A decoder finds some faults even in a string that it skips, others only in one that it decodes. A
    slice with a fault of the first kind takes precedence.
    """
    texts = []
    fault = b""
    while start < stop:
        piece = raw[start : min(start + SLICE_BYTES, stop)]
        if start + len(piece) < stop:
            piece = _whole_characters(piece)
        text = _text(b'"' + piece + b'"')
        if isinstance(text, str):
            texts.append(text)
        elif _is_string(text):
            fault = fault or text
        else:
            return text
        start += len(piece)
        await asyncio.sleep(0)
    return fault or "".join(texts)


def _is_string(raw: bytes) -> bool:
    """Return whether a decoder can skip a string in quotes without finding a fault."""
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True


def _whole(piece: bytes) -> bytes:
    """Return a slice without a last backslash that escapes a byte of the next slice."""
    return piece[:-1] if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else piece


def _without_escapes(piece: bytes) -> bytes:
    r"""Return a slice of the same length in which other bytes take the place of each \\ and \"."""
    return piece.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _whole_characters(piece: bytes) -> bytes:
    piece = _whole(piece)
    plain = _without_escapes(piece)
    # An escape that may go on in the next slice is left to it, with the first half of its pair.
    last = plain.rfind(b"\\", max(0, len(piece) - _PAIR_BYTES))
    if last >= 0:
        first = _FIRST_OF_PAIR.search(plain, max(0, last - _PAIR_BYTES), last)
        return piece[: first.start() if first else last]
    # UTF-8: a character that goes on in the next slice begins in the last three bytes.
    for back in (1, 2, 3):
        byte = piece[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            return piece[:-back]
    return piece


def _text(raw: bytes) -> str | bytes:
    try:
        return msgspec.json.decode(raw, type=str)
    except UNREADABLE:
        return raw
