"""Finds and replaces the model's name in bodies, which may be cut off or no JSON at all."""

import asyncio
import json
import re
from typing import NamedTuple

import msgspec

from warmpath.process.bytes import UNREADABLE
from warmpath.router.inference_api.json_values import JsonValues, Paths
from warmpath.router.prompt.bodies.fields import MOST_VALUES, SLICE_BYTES
from warmpath.router.prompt.limits import MOST_NAME_BYTES

MODEL: Paths = {b"model": "model"}


async def with_model(body: bytes, name: str) -> bytes:
    """Return a JSON body with another model's name; all other bytes stay as they are.

    A body that names the model twice gets the new name twice, whichever of the two the engine reads. A
    body that names none is returned as it is.
    """
    parts, copied = [], 0
    new = msgspec.json.encode(name)
    for start, stop in await _values(body):
        parts += [body[copied:start], new]
        copied = stop
    return b"".join([*parts, body[copied:]]) if parts else body


async def read_model(body: bytes) -> str:
    """Return the model that a body names, or the part of it that has come; empty if it names none."""
    values = await _values(body)
    try:
        start, stop = values[-1] if values else (0, 0)
        model = msgspec.json.decode(body[start:stop], type=str)
    except UNREADABLE:
        return ""
    return model if len(model.encode()) <= MOST_NAME_BYTES else ""


async def _values(body: bytes) -> list[tuple[int, int]]:
    """Return where the body names a model, from and to; names that are too long are left out."""
    found: list[tuple[int, int]] = []

    def take(_: str, value: bytes | None, start: int) -> None:
        if value and len(found) < MOST_VALUES:
            found.append((start, start + len(value)))

    document = JsonValues(MODEL, take)
    for at in range(0, len(body), SLICE_BYTES):
        document.feed(body[at : at + SLICE_BYTES])
        await asyncio.sleep(0)
    return found


class Renaming(NamedTuple):
    """A request that asks the engine for another model than its client did."""

    asked: str
    """The name that the engine is asked for."""
    given: str
    """The client's name."""


class NameInResponse:
    """Gives a response the client's name of the model, piece by piece.

    All fields `model` with the name that the engine was asked for are changed, wherever they are in a
    document or an event, as llm-d's picker does (`rewriteModelName`, pkg/epp/handlers/server.go). In a
    text the quotes are escaped, so nothing is changed there.
    """

    def __init__(self, renaming: Renaming) -> None:
        asked = {msgspec.json.encode(renaming.asked), json.dumps(renaming.asked).encode()}
        self._forms = [b'"model":%b%b' % (space, name) for space in (b"", b" ") for name in asked]
        self._pattern = re.compile(rb'("model": ?)(?:%b)' % b"|".join(map(re.escape, asked)))
        self._most = max(map(len, self._forms)) - 1
        self._given = msgspec.json.encode(renaming.given)
        self._held = b""

    def feed(self, piece: bytes, *, may_hold: bool) -> bytes:
        """Return a piece, renamed; with `may_hold`, an end that may begin the field goes to the next."""
        piece, self._held = self._held + piece, b""
        piece = self._pattern.sub(lambda found: found[1] + self._given, piece)
        start = self._begun(piece) if may_hold else len(piece)
        self._held = piece[start:]
        return piece[:start]

    def _begun(self, piece: bytes) -> int:
        """Return where the field begins that a piece ends within; its length if there is none."""
        places = range(max(0, len(piece) - self._most), len(piece))
        begun = (at for at in places if any(one.startswith(piece[at:]) for one in self._forms))
        return next(begun, len(piece))
