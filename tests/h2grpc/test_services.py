"""Services written for gRPC's own server run on both transports without a change."""

import asyncio
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.h2grpc.served import BOTH, Caller, new_server, until
from tests.indexer.engine_model import EngineModel
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.key import fingerprint
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.client import Watcher
from warmpath.indexer.watch.engine_cache import engine_cache
from warmpath.process.health import HealthService
from warmpath.publisher.entrance import health_handler
from warmpath.publisher.places import Places
from warmpath.publisher.watch_server import WatchServer

pytestmark = pytest.mark.parametrize("transport", BOTH)


async def test_a_router_watches_a_publisher(transport: str) -> None:
    cache = engine_cache(
        Engine(pod="p", model="m", engine="vllm", events="tcp://nowhere:1", ranks=1),
        hash_seed="", journal_bytes=1 << 20, pending_bytes=1 << 20, stale_after=1.0,
        segmented=False, clock=lambda: 0.0,
    )  # fmt: skip
    [rank] = cache.ranks
    rank.connected()
    engine = EngineModel()
    rank.live("", *engine.store((0, 1)))
    keyspace = fingerprint("m", "")
    places = Places(1, slow_seconds=60.0, clock=lambda: 0.0)
    watch = WatchServer(cache, keyspace=keyspace, places=places, heartbeat=0.01)
    server = new_server(transport)
    server.add_generic_rpc_handlers([watch.handler()])
    address = await server.start("127.0.0.1:0")
    ingest = Ingest(
        MemoryIndex(), hash_seed="", pending_bytes=1, stale_after=60.0, clock=lambda: 0.0
    )
    watched = ingest.watch("p", 0)
    watcher = Watcher([watched], address, keyspace=keyspace, credentials=None, retry_seconds=0.01)
    task = asyncio.create_task(watcher.run())
    await until(lambda: watched.trust.level is Level.EXACT)
    assert watched.blocks() == rank.blocks()
    for number in range(50):
        rank.live("", *engine.store((0, 1, number + 2)))
        cache.collect()
        watch.wake()
        await until(lambda: watched.blocks() == rank.blocks())
    assert len(places) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not len(places))
    await server.stop(0)


async def test_health_is_asked_once_or_watched(transport: str) -> None:
    is_fit = True
    checks = HealthService(lambda: is_fit, ("", "a.Service"))
    server = new_server(transport)
    server.add_generic_rpc_handlers([health_handler(checks)])
    notifying = asyncio.create_task(checks.keep_notifying())
    async with Caller(await server.start("127.0.0.1:0")) as call:
        stub: Any = health_pb2_grpc.HealthStub(call.channel)
        request = health_pb2.HealthCheckRequest(service="a.Service")
        serving = health_pb2.HealthCheckResponse.SERVING
        assert (await stub.Check(request)).status == serving
        watched = stub.Watch(request)
        assert (await watched.read()).status == serving
        is_fit = False
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(service="unknown"))
        watched.cancel()
    notifying.cancel()
    await server.stop(0)
