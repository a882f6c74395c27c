"""Several processes of one router: one follows the engines, all answer, and one that is killed is replaced."""

import asyncio
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq.asyncio

from tests.engine_sockets import EngineSockets
from tests.indexer.sides import stored
from tests.router.running_router import Serving, serving
from tests.waiting import until
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.local.ports import HeldPorts

SIZE = 16


class Engine:
    """An engine that stores one block more of one prompt with each batch."""

    def __init__(self, sockets: EngineSockets, first: int) -> None:
        self.sockets = sockets
        self._first = first
        self.blocks = 0

    def tokens(self, blocks: int) -> list[int]:
        return [self._first + token for token in range(SIZE * blocks)]

    async def store(self, blocks: int) -> None:
        for _ in range(blocks):
            number = self.blocks
            parent = self._first + number if number else None
            event = stored(
                [self._first + number + 1], self.tokens(number + 1)[-SIZE:], parent, SIZE
            )
            await self.sockets.publish(number, msgspec.msgpack.encode([0.0, [event], 0]))
            self.blocks += 1


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[Engine]]:
    with zmq.asyncio.Context() as context:
        found = [Engine(EngineSockets(context), 1_000_000 * n) for n in range(count)]
        for one in found:
            await one.sockets.start()
        try:
            yield found
        finally:
            for one in found:
                one.sockets.close()


async def matched(http: aiohttp.ClientSession, port: int, engine: Engine, pod: str) -> int:
    """Return how many blocks of an engine's prompt a process finds at a pod, exactly; -1 if not exact."""
    packed = b64encode(pack_tokens(engine.tokens(engine.blocks + 1))).decode()
    body = {"prompt": {"model": "m", "token_ids_packed": packed}}
    try:
        async with http.post(f"http://127.0.0.1:{port}/api/v1/Score", json=body) as response:
            answer: dict[str, Any] = await response.json()
    except aiohttp.ClientError:
        return -1
    score = next(one for one in answer["scores"] if one["pod"] == pod)
    is_exact = score["trust"]["level"] == "EXACT"
    return int(score.get("matched_tokens", 0)) // SIZE if is_exact else -1


async def process(router: Serving, number: int) -> int:
    """Return the process id of one of a router's processes."""
    listed = Path(f"/proc/{router.process.pid}/task/{router.process.pid}/children")
    for child in (await asyncio.to_thread(listed.read_text)).split():
        words = (await asyncio.to_thread(Path(f"/proc/{child}/cmdline").read_text)).split("\0")
        if "--process" in words and words[words.index("--process") + 1] == str(number):
            return int(child)
    return 0


@pytest.mark.parametrize("kills", [(0,), pytest.param((1, 0, 0, 1), marks=pytest.mark.deep)])
async def test_one_process_follows_for_all_and_is_replaced_without_losing_the_view(
    tmp_path: Path, held_ports: HeldPorts, kills: tuple[int, ...]
) -> None:
    metrics = held_ports.take(1)
    ports = [metrics, metrics + 1]
    async with engines(2) as fleet, aiohttp.ClientSession() as http:
        text = (
            f'[server]\nprocesses = 2\nlisten = "127.0.0.1:{held_ports.take()}"\n'
            f'metrics-listen = "127.0.0.1:{metrics}"\ndrain-delay-seconds = 0\n'
            '[probe]\ninterval-seconds = 0\n[[models]]\nname = "m"\n'
        ) + "".join(
            f'[[pods]]\nid = "p{n}"\nmodel = "m"\naddress = "127.0.0.1:1"\n'
            f'events = "{one.sockets.events}"\nreplay = "{one.sockets.replay}"\n'
            for n, one in enumerate(fleet)
        )
        await fleet[0].store(3)

        async def all_find(*where: int) -> bool:
            return all(
                [
                    await matched(http, port, one, f"p{n}") == one.blocks
                    for port in where
                    for n, one in enumerate(fleet)
                ]
            )

        async with serving(tmp_path / "router.toml", text) as router:
            for one in fleet:
                await one.sockets.subscribed()
                await one.store(4)
            await until(partial(all_find, *ports))
            for number in kills:
                # What comes meanwhile is asked of the engine.
                killed = await process(router, number)
                os.kill(killed, signal.SIGKILL)
                for n, one in enumerate(fleet):
                    other = ports[1 - number]
                    assert await matched(http, other, one, f"p{n}") in (-1, one.blocks)
                    await one.store(1)
                await until(partial(all_find, *ports))
                for one in fleet:
                    await one.store(2)
                await until(partial(all_find, *ports))
            router.process.send_signal(signal.SIGTERM)
            assert await router.process.wait() == 0
