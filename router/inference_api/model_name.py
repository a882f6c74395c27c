"""Finds and replaces the model's name in a request's body, which may be cut off or no JSON at all."""

import asyncio
from typing import NamedTuple

import msgspec

from indexer.unreadable import UNREADABLE
from router.inference_api.json_values import JsonValues
from router.prompt.bounds import MOST_NAME_BYTES
from router.prompt.json_strings import SLICE_BYTES

_SPACES = b" \t\r\n"


class _Place(NamedTuple):
    start: int
    stop: int
    value: bytes | None
    """The value's JSON; None if it is too long for a name."""


async def with_model(body: bytes, name: str) -> bytes:
    """Return a JSON body with another model's name; all other bytes stay as they are.

    A model that is named twice is replaced twice, whichever of them the engine reads. A body that names
    none is returned as it is.
    """
    parts, copied = [], 0
    new = msgspec.json.encode(name)
    for start, stop, _ in await _places(body):
        parts += [body[copied:start], new]
        copied = stop
    return b"".join([*parts, body[copied:]]) if parts else body


async def model_of(body: bytes) -> str:
    """Return the model that a body names, even if the body is cut off; empty if it names none."""
    for place in reversed(await _places(body)):
        try:
            name = msgspec.json.decode(place.value or b"", type=str)
        except UNREADABLE:
            return ""
        return name if len(name.encode()) <= MOST_NAME_BYTES else ""
    return ""


async def _places(body: bytes) -> list[_Place]:
    """Return where the body's values of `model` lie, without the spaces around them."""
    found: list[_Place] = []

    def take(_: str, value: bytes | None) -> None:
        if value is None:
            found.append(_Place(document.start, document.stop, None))
            return
        before, after = (len(value) - len(s) for s in (value.lstrip(_SPACES), value.rstrip(_SPACES)))
        if before < len(value):
            found.append(_Place(document.start + before, document.stop - after, value.strip(_SPACES)))

    document = JsonValues({b"model": "model"}, take)
    for at in range(0, len(body), SLICE_BYTES):
        document.feed(body[at : at + SLICE_BYTES])
        await asyncio.sleep(0)
    return found
