"""A pod sleeps and wakes beside real routers: its blocks are gone before its events say so."""

import asyncio
from pathlib import Path

import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import IDS, OTHER, Router, generate, publisher, router, seen, until
from tests.servers.redis_server import RedisServer
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.assemble import publishing


async def is_ready(one: Router, *, ready: bool = True) -> None:
    while (await one.pod()).ready is not ready:
        await asyncio.sleep(0.02)


async def call(worker: LocalWorker, path: str) -> None:
    async with worker.http.post(path) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_a_pod_behind_a_publisher_is_degraded_from_its_sleep_until_its_next_batch(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str, mode: str
) -> None:
    url = redis_server.url
    async with (
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker), f'mode = "{mode}"', probe_seconds=0.05) as one,
    ):
        await generate(worker, IDS)
        await until(one.is_believed)
        while await one.score() != {"w": 144}:
            await asyncio.sleep(0.02)
        await call(worker, "/sleep?level=1")
        await is_ready(one, ready=False)
        while (trust := await one.trust()).level != pb.Trust.DEGRADED:
            await asyncio.sleep(0.02)
        assert "it sleeps" in trust.reason
        await call(worker, "/wake_up?tags=weights")
        await call(worker, "/wake_up?tags=kv_cache")
        await is_ready(one)
        assert (await one.trust()).level == pb.Trust.DEGRADED, "no batch has said what is gone"
        await generate(worker, OTHER)
        await until(one.is_believed)
        while await one.score() != {"w": 0}:
            await asyncio.sleep(0.02)
        assert await one.score(OTHER) == {"w": 96}


async def test_a_router_that_starts_while_a_pod_sleeps_takes_no_blocks_of_it_from_its_state(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str
) -> None:
    pod = f'{seen(worker)}events = "{worker.events}"\nreplay = "{worker.replay}"\n'
    state = '[index]\nstate-file = "state"'
    url = redis_server.url
    async with router(tmp_path, url, prefix, pod, state, probe_seconds=0.05) as one:
        await until(one.is_believed)
        await generate(worker, IDS)
        while await one.score() != {"w": 144}:
            await asyncio.sleep(0.02)
    assert (tmp_path / "state").is_file()
    await call(worker, "/sleep?level=2")
    async with router(tmp_path, url, prefix, pod, state, probe_seconds=0.05) as one:
        await is_ready(one, ready=False)
        while await one.score() != {"w": 0}:
            await asyncio.sleep(0.02)
        await call(worker, "/wake_up")
        await is_ready(one)
        assert await one.score() == {"w": 0}
