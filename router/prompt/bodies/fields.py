"""Decodes the needed fields of a JSON body without blocking the event loop for long.

A decoder makes an object of each value in one call, which takes seconds for the values that a few
megabytes can hold. So the strings of a large body are decoded apart, values are counted, fields that do
not matter are skipped, and token ids are decoded in slices. Other tasks run between slices.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from warmpath.indexer.keys.key import pack_tokens
from warmpath.process.bytes import UNREADABLE
from warmpath.router.prompt.bodies.json_strings import (
    LARGE_BYTES,
    NONE,
    SLICE_BYTES,
    FieldError,
    FieldLimitError,
    Strings,
    take_out,
)

MOST_VALUES = 65_536
"""Most values of a body, nested ones included: objects, lists, numbers, texts. A completions body may
have `limits.max-prompt-tokens` more, for its token ids."""
MOST_STRINGS = 2 * MOST_VALUES
"""Most strings of a body: each value may be a string and have a name."""
MISSING = msgspec.Raw()
"""Takes the place of a field that a body lacks."""


class RawFields(msgspec.Struct, frozen=True):
    """The fields of a body, not decoded yet."""

    fields: Mapping[str, msgspec.Raw]
    """The fields that the body has, by name."""
    _strings: Strings

    async def decoded(self, name: str) -> Any:
        """Return the value of a field that the body has.

        Raises FieldError if it has too many values or is not JSON.
        """
        return await self.value(self.fields[name], name)

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
        return value if self._strings is NONE else await self._strings.put_back(value)


async def raw_fields(raw: bytes, names: tuple[str, ...], most: int = MOST_VALUES) -> RawFields:
    """Return the fields of a body that it has and that `names` lists.

    Raises FieldError if the body is not a JSON object or has more than `most` values.
    """
    strings = NONE
    if len(raw) > LARGE_BYTES:
        raw, strings = await take_out(raw, MOST_STRINGS, names)
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
        raise FieldLimitError(f"has {count} tokens; limits.max-prompt-tokens is {most}", name)
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
    """Raise FieldLimitError if JSON holds more than `most` values; other tasks run between slices.

    If it is not valid, the values before its first fault count; some behind it may not.
    """
    values = 1
    for more in value_counts(bytes(raw)):
        values += more
        if values > most:
            raise FieldLimitError(f"holds more than {most} values", name)
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
