"""Faults of processes: publishers that get little processor time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.faults.outside import Outside, proceed, starve, stop
from tests.faults.refusals import BEHIND
from tests.faults.rig import DEFAULT_LEASE, Outcome, Rig, rig
from tests.servers.redis_server import RedisServer
from warmpath.process.tasks import cancel, watched

STOPPED, RUNNING = 5.0, 0.3
"""Seconds for which publishers are stopped and run, in turn."""


@asynccontextmanager
async def outside(prefix: str) -> AsyncIterator[tuple[Rig, Outside]]:
    """Provide a rig, and the place of the processes beside it whose engines listen."""
    with RedisServer() as server:
        async with rig(server.url, prefix, lease=DEFAULT_LEASE, publishes=False) as made:
            place = Outside(made, server.url)
            await place.listen()
            yield made, place


async def stopped_in_turn(prefix: str, hold: float) -> Outcome:
    """Stop publishers for most of the time, with their connections open."""
    async with outside(prefix) as (made, place):
        publishers = await place.publish()
        await made.begin()
        for _ in range(2 + round(hold / STOPPED)):
            stop(publishers)
            await made.lasts(STOPPED)
            proceed(publishers)
            await made.lasts(RUNNING)
        return await made.healed()


async def starved(prefix: str, hold: float, *, share: float) -> Outcome:
    """Give each publisher a share of a core; with 1.0 nothing is wrong."""
    async with outside(prefix) as (made, place):
        publishers = await place.publish()
        await made.begin()
        tasks = [watched(starve(one, share), f"starving {one.name}") for one in publishers]
        await made.lasts(BEHIND + hold)
        await cancel(tasks)
        proceed(publishers)
        return await made.healed()
