"""Phases in which processes end and start again: engines, routers, publishers, Redis."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from tests.engines.vllm.driver import Driver
from tests.engines.vllm.fleet import PLUGIN, SECONDS, SIDECAR
from tests.engines.vllm.prompts import RANKS, ids, somewhere
from tests.vllm.engine import Engine
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

Prompts = list[list[int]]


async def engines(driver: Driver, rng: Random) -> None:
    """End an engine in order, and kill the other one; Envoy sends to the one that is left."""
    prompts = await _known(driver, rng)
    for pod, end in ((SIDECAR, Engine.stop), (PLUGIN, Engine.kill)):
        await asyncio.to_thread(end, driver.fleet.engines[pod])
        await _down(driver, pod)
        for prompt in prompts[:5]:
            assert (await driver.ask({"prompt": prompt})).served[0] != pod
        await driver.fleet.start_engine(pod)
        for rank in RANKS:
            if rank[0] == pod:
                # It was warm for this one in its last life.
                await driver.ask({"prompt": prompts[0]}, rank, settled=False)
        await _ask_all(driver, rng, prompts)


async def routers(driver: Driver, rng: Random) -> None:
    """Kill one router and end the other in order; caches change while each is away."""
    prompts = await _known(driver, rng)
    for mode, process in driver.fleet.routers.items():
        if mode == "replica":
            process.kill()
        await process.stop(within=30)
        await _unseen(driver, rng, prompts)
        await driver.fleet.start_router(mode)
        await driver.fleet.gateway_serves()
        await _ask_all(driver, rng, prompts)


async def publishers(driver: Driver, rng: Random) -> None:
    """End the sidecar in order, kill it, and kill the plug-in's publisher, which vLLM starts again."""
    prompts = await _known(driver, rng)

    async def end() -> None:
        await driver.fleet.publisher.stop(within=30)

    async def kill() -> None:
        driver.fleet.publisher.kill()
        await end()

    async def kill_plugin() -> None:
        os.kill(_publisher_of(driver.fleet.engines[PLUGIN].publisher), signal.SIGKILL)

    async def nothing() -> None:
        """Leave it to the plug-in."""

    start = driver.fleet.start_publisher
    steps: list[tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]] = [
        (end, start), (kill, start), (kill_plugin, nothing),
    ]  # fmt: skip
    for away, again in steps:
        await away()
        await _unseen(driver, rng, prompts)
        await again()
        await _ask_all(driver, rng, prompts)


async def redis(driver: Driver, rng: Random) -> None:
    """Kill Redis, which comes back empty; meanwhile routers go on with what they know."""
    prompts = await _known(driver, rng)
    warm = await driver.ask({"prompt": prompts[0]})
    await asyncio.to_thread(driver.fleet.redis.kill)
    await _not_exact(driver)
    for _ in range(3):
        await driver.ask({"prompt": prompts[0]}, warm.served, settled=False)
    await _unseen(driver, rng, prompts)
    await asyncio.to_thread(driver.fleet.redis.restart)
    await _ask_all(driver, rng, prompts)


async def _known(driver: Driver, rng: Random) -> Prompts:
    prompts = [ids(rng, rng.randint(100, 300)) for _ in range(6)]
    for prompt in prompts:
        await driver.ask({"prompt": prompt}, rng.choice(RANKS))
    return prompts


async def _unseen(driver: Driver, rng: Random, prompts: Prompts) -> None:
    """Change every rank's cache without asking a router."""
    for rank in RANKS:
        await driver.send({"prompt": rng.choice(prompts) + ids(rng, 100)}, rank)
        await driver.send({"prompt": ids(rng, 400)}, rank)
    prompts.append(ids(rng, 200))
    await driver.send({"prompt": prompts[-1]}, rng.choice(RANKS))


async def _ask_all(driver: Driver, rng: Random, prompts: Prompts) -> None:
    for prompt in rng.sample(prompts, len(prompts)):
        await driver.ask({"prompt": prompt}, rng.choice(RANKS))
        await driver.ask({"prompt": prompt + ids(rng, 20)}, somewhere(rng))


async def _down(driver: Driver, pod: str) -> None:
    """Wait until both routers know that a pod is down: until then Envoy tries it, and may have no other.

    Of these two pods only one has a second rank, and fall-backs need the rank that was picked.
    """
    async with asyncio.timeout(SECONDS):
        for client in driver.fleet.clients.values():
            while any(one.ready for one in (await client.pods()).pods if one.id == pod):
                await asyncio.sleep(0.05)


async def _not_exact(driver: Driver) -> None:
    """Wait until the router that copies the index no longer calls its view exact."""
    async with asyncio.timeout(SECONDS):
        while True:
            pods = (await driver.fleet.clients["replica"].pods()).pods
            levels = {rank.trust.level for pod in pods for rank in pod.ranks}
            if pb.Trust.EXACT not in levels:
                return
            await asyncio.sleep(0.05)


def _publisher_of(port: int) -> int:
    """Return the id of the publisher that listens at a port."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"warmpath.publisher.main" in words and f"--listen=127.0.0.1:{port}".encode() in words:
            return int(path.parent.name)
    raise AssertionError(f"no publisher listens at {port}")
