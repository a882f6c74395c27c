"""Finds and replaces the model's name in a request's body, which may be cut off or no JSON at all."""

import asyncio
from typing import NamedTuple

import msgspec

from indexer.unreadable import UNREADABLE
from router.inference_api.json_values import JsonValues, Paths
from router.prompt.body_fields import MOST_VALUES
from router.prompt.bounds import MOST_NAME_BYTES
from router.prompt.json_strings import SLICE_BYTES

MODEL: Paths = {b"model": "model"}
HEAD: Paths = {b"model": "model", b"stream": "stream"}


class BodyHead(NamedTuple):
    """The fields of a body that all APIs have in common."""

    model: str
    """Empty if the body names none."""
    is_streamed: bool


class _Value(NamedTuple):
    name: str
    start: int
    stop: int
    json: bytes


async def with_model(body: bytes, name: str) -> bytes:
    """Return a JSON body with another model's name; all other bytes stay as they are.

    A body that names the model twice gets the new name twice, whichever of the two the engine reads. A
    body that names none is returned as it is.
    """
    parts, copied = [], 0
    new = msgspec.json.encode(name)
    for value in await _values(body, MODEL):
        parts += [body[copied : value.start], new]
        copied = value.stop
    return b"".join([*parts, body[copied:]]) if parts else body


async def read_head(body: bytes) -> BodyHead:
    """Return these fields of a body, as far as it has come if it is cut off."""
    last = {value.name: value.json for value in await _values(body, HEAD)}
    try:
        model = msgspec.json.decode(last.get("model", b""), type=str)
    except UNREADABLE:
        model = ""
    fits = len(model.encode()) <= MOST_NAME_BYTES
    return BodyHead(model if fits else "", last.get("stream") == b"true")


async def _values(body: bytes, paths: Paths) -> list[_Value]:
    """Return the body's values at some paths; those that are too long for a name are left out."""
    found: list[_Value] = []

    def take(name: str, value: bytes | None) -> None:
        if value and len(found) < MOST_VALUES:
            found.append(_Value(name, document.start, document.stop, value))

    document = JsonValues(paths, take)
    for at in range(0, len(body), SLICE_BYTES):
        document.feed(body[at : at + SLICE_BYTES])
        await asyncio.sleep(0)
    return found
