"""Decodes the needed fields of a JSON body without blocking the event loop for long.

A decoder makes an object of each value in one call, which takes seconds for the values that a few
megabytes can hold. So values are counted, fields that do not matter are skipped, and token ids are
decoded in slices. It also takes milliseconds per megabyte, and nearly all of a large body is strings: a
short stand-in takes the place of each long one, which is decoded apart, in slices, and put back once the
rest is decoded. Other tasks run between slices.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from warmpath.indexer.keys.key import pack_tokens
from warmpath.process.bytes import UNREADABLE

SLICE_BYTES = 32 << 10
"""Bytes that are processed without a pause: about a millisecond's work."""
LARGE_BYTES = 256 << 10
"""Decoding more bytes in one call takes milliseconds."""
SHORT_BYTES = 256
"""A string of fewer bytes stays in the document, as does each field's name, however it is escaped."""
VALUES_AT_ONCE = 2048
"""Values that are visited without a pause while strings are put back."""
MOST_VALUES = 65_536
"""Most values of a body, nested ones included: objects, lists, numbers, texts. A completions body may
have `limits.max-prompt-tokens` more, for its token ids."""
MOST_STRINGS = 2 * MOST_VALUES
"""Most strings of a body: each value may be a string and have a name."""
MISSING = msgspec.Raw()
"""Takes the place of a field that a body lacks."""

_MARK = secrets.token_hex(8)
"""Begins each stand-in. Each process draws its own, so that no caller can write a stand-in."""
_QUOTE = re.compile(b'"')
_BREAK = re.compile(rb"[\s,:\[\]{}\"]")
"""Bytes that end a number."""
_SPACES = re.compile(rb"[ \t\r\n]{%d,}" % (SHORT_BYTES + 1))
"""More spaces than a string has that stays in the document: only those between values go."""
_PAIR_BYTES = len(rb"\ud83d\ude00")
"""The longest sequence of bytes that is one character."""
_CUT = re.compile(rb"((\\u[dD][89abAB]..)?\\[^\\]{0,5}|[\xc0-\xff][\x80-\xbf]{0,2})\Z", re.DOTALL)
"""An end of a slice that may be part of a character, with which the next slice begins: an escape, maybe
behind the first half of its pair, or the first bytes in UTF-8."""


class FieldError(Exception):
    """A body or one of its fields is refused; `field` is empty for the body itself."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RawFields(msgspec.Struct, frozen=True):
    """The fields of a body, not decoded yet."""

    fields: Mapping[str, msgspec.Raw]
    """The fields that the body has, by name."""
    strings: Mapping[str, str]
    """The strings that were taken out of it, by their stand-ins."""

    def has(self, name: str) -> bool:
        """Return whether a field is given and not null."""
        return bytes(memoryview(self.fields.get(name, MISSING))[:1]) not in (b"", b"n")

    def is_list(self, name: str) -> bool:
        return bytes(memoryview(self.fields.get(name, MISSING))[:1]) == b"["

    async def ids(self, name: str, most: int) -> bytes | None:
        """Return a field that is a list of token ids, as `packed_ids` does; None for any other value."""
        return await packed_ids(self.fields[name], name, most) if self.is_list(name) else None

    async def decoded(self, name: str) -> Any:
        """Return a field's value; None if it is missing.

        Raises FieldError if it has too many values or is not JSON.
        """
        return await self.value(self.fields[name], name) if name in self.fields else None

    async def value(self, raw: msgspec.Raw, name: str) -> Any:
        """Return the decoded value `raw`, as `decoded` does; `name` is for errors."""
        size = memoryview(raw).nbytes
        # Each value takes at least one byte.
        if size > MOST_VALUES:
            await check_values(raw, MOST_VALUES, name)
        try:
            value = msgspec.json.decode(raw)
        except UNREADABLE as error:
            raise FieldError(f"is not JSON: {_why(bytes(raw), error)}") from error
        if size > LARGE_BYTES:
            await asyncio.sleep(0)
        return await put_back(value, self.strings) if self.strings else value


async def raw_fields(raw: bytes, names: tuple[str, ...], most: int = MOST_VALUES) -> RawFields:
    """Return the fields of a body that it has and that `names` lists.

    Raises FieldError if the body is not a JSON object or has more than `most` values.
    """
    strings: Mapping[str, str] = {}
    if len(raw) > LARGE_BYTES:
        raw, strings = await take_out(raw, MOST_STRINGS)
    if len(raw) > most:
        await check_values(raw, most)
    try:
        found = msgspec.json.decode(raw, type=_kind(names))
    except msgspec.ValidationError as error:
        raise FieldError("is not a JSON object") from error
    except UNREADABLE as error:
        raise FieldError(f"is not JSON: {_why(raw, error)}") from error
    if len(raw) > LARGE_BYTES:
        await asyncio.sleep(0)
    given = msgspec.structs.asdict(found)
    return RawFields({name: one for name, one in given.items() if one is not MISSING}, strings)


async def take_out(raw: bytes, most: int) -> tuple[bytes, dict[str, str]]:
    """Return a document with stand-ins for its long strings, and the strings by their stand-ins.

    The returned document is valid JSON if and only if `raw` is. Raises FieldError if `raw` ends within a
    string, or if it has more than `most` strings, or a number that fills a whole slice.
    """
    parts: list[bytes] = []
    texts: dict[str, str] = {}
    at = copied = strings = 0
    opened = -1
    while at < len(raw):
        piece = raw[at : at + SLICE_BYTES]
        if at + SLICE_BYTES < len(raw) and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The last backslash escapes a byte of the next slice.
            piece = piece[:-1]
        for quote in _QUOTE.finditer(_without_escapes(piece)):
            here = at + quote.start()
            if opened < 0:
                opened = here
                continue
            start, opened = opened, -1
            strings += 1
            # What is no JSON string stays: decoding the document reports it if the value is needed.
            if (
                here - start > SHORT_BYTES
                and (text := await _text(raw[start + 1 : here])) is not None
            ):
                name = f"{_MARK}{strings:x}"
                texts[name] = text
                parts += [_SPACES.sub(b" ", raw[copied:start]), f'"{name}"'.encode()]
                copied = here + 1
        at += len(piece)
        if opened < 0:
            if len(piece) >= SLICE_BYTES and not _BREAK.search(piece):
                raise FieldError(f"holds a number of more than {SLICE_BYTES} bytes")
            parts.append(_SPACES.sub(b" ", raw[copied:at]))
            copied = at
        if strings > most:
            raise FieldError(f"holds more than {most} strings")
        await asyncio.sleep(0)
    if opened >= 0:
        raise FieldError("is not JSON: it ends within a string")
    return b"".join(parts), texts


async def put_back(value: Any, strings: Mapping[str, str]) -> Any:
    """Return a decoded value in which strings replace their stand-ins."""

    def text(one: Any) -> Any:
        return strings.get(one, one) if isinstance(one, str) else one

    whole = [value]
    left: list[Any] = [whole]
    passed = 0
    while left:
        one = left.pop()
        members = [*(one.items() if isinstance(one, dict) else enumerate(one))]
        if isinstance(one, dict):
            one.clear()
        for name, inner in members:
            one[text(name)] = text(inner)
            if isinstance(inner, dict | list):
                left.append(inner)
            passed += 1
            if not passed % VALUES_AT_ONCE:
                await asyncio.sleep(0)
    return whole[0]


async def _text(raw: bytes) -> str | None:
    """Return the text of a string without its quotes; None if it is not valid."""
    texts, start = [], 0
    while start < len(raw):
        piece = raw[start : start + SLICE_BYTES]
        is_last = start + SLICE_BYTES >= len(raw)
        cut = None if is_last else _CUT.search(_without_escapes(piece), len(piece) - _PAIR_BYTES)
        piece = piece[: cut.start()] if cut else piece
        try:
            texts.append(msgspec.json.decode(b'"%b"' % piece, type=str))
        except UNREADABLE:
            return None
        start += len(piece)
        if not is_last:
            await asyncio.sleep(0)
    return "".join(texts)


def _without_escapes(piece: bytes) -> bytes:
    r"""Return a slice of the same length in which other bytes take the place of each \\ and \"."""
    return piece.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in piece else piece


async def packed_ids(raw: msgspec.Raw, name: str, most: int) -> bytes | None:
    """Return a JSON list of token ids, packed; None if it holds anything but integers.

    Raises FieldError if it has more than `most` ids, or if one is not an unsigned 32-bit integer.
    """
    inner = bytes(raw).strip()[1:-1]
    if not inner.strip():
        return b""
    packed, count, at = [], 0, 0
    while at <= len(inner):
        end = inner.find(b",", at + SLICE_BYTES)
        piece = inner[at : end if end >= 0 else len(inner)]
        at += len(piece) + 1
        if count > most:
            count += piece.count(b",") + 1
        else:
            ids = _ids(piece)
            if ids is None:
                return None
            count += len(ids)
            try:
                packed.append(pack_tokens(ids))
            except ValueError as error:
                raise FieldError(str(error), name) from error
        if at <= len(inner):
            await asyncio.sleep(0)
    if count > most:
        raise FieldError(f"has {count} tokens; limits.max-prompt-tokens is {most}", name)
    return b"".join(packed)


def value_counts(raw: bytes) -> Iterator[int]:
    """Yield, for each slice of valid JSON, how many values begin in it, except for the outermost one.

    An empty list or object counts as if it held one value.
    """
    at, is_inside = 0, 0
    while at < len(raw):
        piece = raw[at : at + SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The byte that the last backslash escapes belongs to this slice.
            piece = raw[at : at + SLICE_BYTES + 1]
        at += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[is_inside::2])
        is_inside ^= (len(parts) - 1) % 2
        # A list's or an object's first value has no comma before it.
        yield sum(map(outside.count, (b",", b"[", b"{")))


async def check_values(raw: bytes | msgspec.Raw, most: int, name: str = "") -> None:
    """Raise FieldError if JSON holds more than `most` values; other tasks run between slices.

    If it is not valid, the values before its first fault count; some behind it may not.
    """
    values = 1
    for more in value_counts(bytes(raw)):
        values += more
        if values > most:
            raise FieldError(f"holds more than {most} values", name)
        await asyncio.sleep(0)


def _ids(piece: bytes) -> Sequence[int] | None:
    try:
        return msgspec.json.decode(b"[" + piece + b"]", type=list[int])
    except UNREADABLE:
        # Not all values are integers; the slice may also end within a list or a text.
        return None


@cache
def _kind(names: tuple[str, ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Fields", [(name, msgspec.Raw, MISSING) for name in names])


def _why(raw: bytes, error: Exception) -> str:
    if b"\\u" in raw:
        try:
            json.dumps(json.loads(raw), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "a string holds a lone surrogate"
        except (ValueError, RecursionError):
            pass
    return str(error)
