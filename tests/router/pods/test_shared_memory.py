"""What docs/guides/shared-index.md says of Redis at its memory limit, beside a worker, a publisher, a router."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import IDS, OTHER, generate, publisher, router, seen, until
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.assemble import publishing


@pytest.fixture(params=["redis", "valkey"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.mark.deep
async def test_writes_refused_for_want_of_memory_are_said_and_made_up_for(
    tmp_path: Path, worker: LocalWorker, server: RedisServer, prefix: str
) -> None:
    await generate(worker, IDS)
    async with (
        publishing(publisher(worker, server.url, prefix)),
        router(tmp_path, server.url, prefix, seen(worker)) as one,
    ):
        await until(one.is_believed)
        server.ask("CONFIG", "SET", "maxmemory", 1)
        await generate(worker, OTHER)
        while "OOM" not in (await one.trust()).reason:
            # What was there before is known on.
            assert await one.score() == {"w": 144}
            await asyncio.sleep(0.02)
        assert (await one.trust()).level == pb.Trust.DEGRADED
        server.ask("CONFIG", "SET", "maxmemory", 0)
        await until(one.is_believed)
        assert await one.score(OTHER) == {"w": 96}
        assert await one.score() == {"w": 144}


@pytest.mark.deep
async def test_buckets_that_are_evicted_are_noticed_and_written_again(
    tmp_path: Path, worker: LocalWorker, server: RedisServer, prefix: str
) -> None:
    await generate(worker, IDS)
    names = KeyNames(prefix)
    async with (
        publishing(publisher(worker, server.url, prefix)),
        router(tmp_path, server.url, prefix, seen(worker)) as one,
    ):
        await until(one.is_believed)
        buckets = [names.bucket(number) for number in range(names.buckets)]
        assert server.ask("EXISTS", *buckets) == 64
        used = int(server.facts("INFO", "memory")["used_memory"])
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-random")
        server.ask("CONFIG", "SET", "maxmemory", used + (1 << 20))
        number = 0
        async with asyncio.timeout(60):
            while (await one.trust()).level == pb.Trust.EXACT:
                # Others' keys have no time to live: room is made of what is the index's.
                if server.ask("EXISTS", *buckets) == 64:
                    number += 1
                    # Refused where there is nothing left that may go.
                    with contextlib.suppress(redis.ResponseError):
                        await asyncio.to_thread(server.ask, "SET", f"other{number}", b"x" * 50_000)
                assert set(await one.score()) == {"w"}
        server.ask("CONFIG", "SET", "maxmemory", 0)
        await until(one.is_believed)
        assert await one.score() == {"w": 144}
        assert server.ask("EXISTS", *buckets) == 64
