"""Reads server-sent events."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Yield the name and the data of each event, until the stream ends."""
    name = ""
    async for line in response.content:
        kind, _, value = line.decode().rstrip("\n").partition(": ")
        if kind == "event":
            name = value
        elif kind == "data":
            yield name, json.loads(value)
