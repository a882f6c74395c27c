"""A router with simulated pods behind it, for tests of its live page; reads server-sent events."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.router.running_router import running_router
from warmpath.router.assemble.running import Running

DEMO = '[[models]]\nname = "demo"\n'


def pods(*names: str) -> str:
    """Return the tables of pods whose engines do not run."""
    return DEMO + "".join(
        f'[[pods]]\nid = "{name}"\nmodel = "demo"\naddress = "127.0.0.9:{port}"\n'
        f'events = "tcp://127.0.0.9:{port}"\n'
        for port, name in enumerate(names, 1)
    )


@asynccontextmanager
async def live(
    folder: Path, tables: str, token: str = ""
) -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    """Run a router; yield it, and a session of its HTTP listener."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        running_router(folder, tables) as (router, _),
        aiohttp.ClientSession(f"http://{router.http_address}", headers=headers) as session,
    ):
        yield router, session


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Yield the name and the data of each event, until the stream ends."""
    name = ""
    async for line in response.content:
        kind, _, value = line.decode().rstrip("\n").partition(": ")
        if kind == "event":
            name = value
        elif kind == "data":
            yield name, json.loads(value)
