"""Writes the body of a chat request from what another API's request becomes in the engine."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from router.prompt.json_strings import LARGE_BYTES

_encode = msgspec.json.Encoder().encode


async def chat_body(messages: Iterable[Any], fields: Mapping[str, Any]) -> bytes:
    """Return the body of a chat request with some fields; fields without a value are left out."""
    parts = [b'{"messages":[']
    pending = 0
    for number, message in enumerate(messages):
        part = _encode(message)
        parts += [b"," if number else b"", part]
        pending += len(part)
        if pending > LARGE_BYTES:
            pending = 0
            await asyncio.sleep(0)
    parts.append(b"]")
    for name, value in fields.items():
        if value is not None:
            parts += [b",", _encode(name), b":", _encode(value)]
    return b"".join([*parts, b"}"])
