"""Somebody damages keys by hand: no Score fails, what is called exact is true, and all heals by itself."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from tests.faults import planted
from tests.faults.rig import DEFAULT_LEASE, Rig, rig
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.sweep.sweeper import SWEEP_ERRORS, Sweeper
from warmpath.process.tasks import cancel, watched

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]


@contextlib.asynccontextmanager
async def swept(made: Rig) -> AsyncIterator[None]:
    """Sweep all the time, as routers and publishers do each minute."""
    sweeper = Sweeper(
        made.inspector,
        made.names,
        owner="test",
        clock=time.monotonic,
        fields_per_second=1e6,
        # Readers here read records much more often than the pause before a purge lasts.
        sleep=lambda seconds: asyncio.sleep(min(seconds, 1.0)),
    )

    async def forever() -> None:
        while True:
            with contextlib.suppress(*SWEEP_ERRORS):
                await sweeper.sweep(insist=True)
            await asyncio.sleep(0.1)

    task = watched(forever(), "sweeping")
    try:
        yield
        passes = sweeper.counts.passes
        await made.until(lambda: sweeper.counts.passes > passes + 1, "sweeps go to their end")
    finally:
        await cancel([task])


def of_pod_a(names: KeyNames) -> Iterator[planted.Damage]:
    return planted.of_a_pod(names, "a")


async def plant(made: Rig, server: RedisServer, damage: planted.Damage, *, claims: bool) -> None:
    """Do the damage; with `claims` pod a is claimed anew, too, while it is there."""
    await made.exact()
    for words in damage:
        await made.work(partial(server.ask, *words))
    async with swept(made):
        if claims:
            await made.work(partial(server.ask, "DEL", made.names.record("a")))
            await made.rewritten()
        await made.goes_on()
        await made.exact()
    # Its writer may not have missed yet what the last pass removed.
    writers = [pod.publisher.writer for pod in made.pods.values()]
    audits = [writer.counts.audits + 2 for writer in writers]
    await made.until(
        lambda: all(
            writer.counts.audits >= due for writer, due in zip(writers, audits, strict=True)
        ),
        "all writers have audited",
    )


@pytest.mark.parametrize("claims", [False, True])
@pytest.mark.parametrize(
    "damages",
    [
        planted.of_shared_keys,
        of_pod_a,
        planted.of_buckets,
    ],
    ids=["shared keys", "a pod", "buckets"],
)
async def test_whatever_is_planted_all_is_exact_again(
    prefix: str,
    damages: Callable[[KeyNames], Iterator[planted.Damage]],
    *,
    claims: bool,
) -> None:
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            # Pod b's record does not end by itself, however busy the machine is.
            made.lease = DEFAULT_LEASE
            await made.pods["b"].publisher.end()
            await made.publish(made.pods["b"])
            await made.begin()
            other = made.pods["b"].publisher.writer.counts
            before = other.rebuilds.total()
            for damage in damages(made.names):
                made.begin_count()
                await plant(made, server, damage, claims=claims)
            await made.healed()
            # One pod's damage is that pod's alone.
            assert damages is not of_pod_a or other.rebuilds.total() == before
