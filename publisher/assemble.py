"""The publisher's composition root: an engine's ranks, their journal, the gRPC server."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import zmq.asyncio
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from indexer.connect import Engine, Patience, connections
from indexer.key import fingerprint
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2_grpc
from indexer.rank_ingest import ORPHAN_BYTES, RankIngest
from indexer.rank_state import PureState
from indexer.resolver import Resolver
from indexer.tasks import cancel, watched
from publisher.journal import Journal
from publisher.metrics import PublisherCollector
from publisher.pod_cache import Pending, PodCache
from publisher.watch_server import WatchServer

COLLECT_SECONDS = 0.005
"""How long a change may wait to be told: less than an engine's step."""
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 1.0
PENDING_BYTES = 64 << 20
PATIENCE = Patience(replay_seconds=10.0, reconnect_seconds=0.25, max_frame_bytes=64 << 20)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `warmpath publish` is told."""

    pod: str
    model: str
    engine: str
    events: str
    replay: str
    topic: str
    ranks: int
    blocks: int
    block_size: int
    hash_seed: str
    listen: str
    metrics_listen: str
    journal_bytes: int
    max_watchers: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Publishing:
    """A publisher that serves."""

    address: str
    epoch: str
    cache: PodCache
    server: WatchServer


@asynccontextmanager
async def publishing(settings: Settings) -> AsyncIterator[Publishing]:
    """Publish for as long as the context is open. Raises OSError for what cannot be opened."""
    async with AsyncExitStack() as stack:
        engine = _engine(settings)
        cache = _cache(settings, engine)
        keyspace = fingerprint(settings.model, settings.hash_seed)
        server = WatchServer(
            cache,
            keyspace=keyspace,
            max_watchers=settings.max_watchers,
            heartbeat=HEARTBEAT_SECONDS,
        )
        context = zmq.asyncio.Context()
        stack.callback(context.destroy, linger=0)
        works = [
            *connections(engine, cache.ranks, context, PATIENCE),
            _collect(cache, server),
        ]
        tasks = [watched(work, f"publishing ({number})") for number, work in enumerate(works)]
        stack.push_async_callback(cancel, tasks)
        await _serve_metrics(settings.metrics_listen, PublisherCollector(cache, server), stack)
        address = await _serve(settings, server, stack)
        yield Publishing(address, cache.journal.epoch, cache, server)


def _engine(settings: Settings) -> Engine:
    return Engine(
        pod=settings.pod,
        model=settings.model,
        engine=settings.engine,
        events=settings.events,
        replay=settings.replay,
        topic=settings.topic,
        ranks=settings.ranks,
        blocks=settings.blocks,
        block_size=settings.block_size,
    )


def _cache(settings: Settings, engine: Engine) -> PodCache:
    cache = PodCache(settings.pod, Journal(secrets.token_hex(8), settings.journal_bytes))
    for source in engine.sources():
        sink = Pending()
        resolver = Resolver(source.model, settings.hash_seed, orphan_bytes=ORPHAN_BYTES)
        state = PureState(resolver, sink)
        rank = RankIngest(
            source,
            state,
            pending_bytes=PENDING_BYTES,
            stale_after=STALE_SECONDS,
            clock=time.monotonic,
        )
        cache.add(rank, resolver, sink)
    return cache


async def _collect(cache: PodCache, server: WatchServer) -> None:
    while True:
        for rank in cache.ranks:
            rank.tick()
        if cache.collect():
            server.tell()
        await asyncio.sleep(COLLECT_SECONDS)


async def _serve_metrics(listen: str, collector: PublisherCollector, stack: AsyncExitStack) -> None:
    if not listen:
        return
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, _, port = listen.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
    except OSError as error:
        raise OSError(f"--metrics-listen: cannot bind {listen}: {error.strerror}") from error


async def _serve(settings: Settings, watch: WatchServer, stack: AsyncExitStack) -> str:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    cache_watch_pb2_grpc.add_CacheWatchServicer_to_server(watch, server)
    checks = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    try:
        credentials = _credentials(settings)
        if credentials is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, credentials)
    except RuntimeError as error:
        problem = f"--listen: cannot bind {settings.listen}"
        if settings.tls_cert is not None:
            problem += ", or --tls-cert and --tls-key are no certificate and its key in PEM"
        raise OSError(problem) from error
    await server.start()
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    stack.push_async_callback(server.stop, 0)
    return f"{settings.listen.rpartition(':')[0]}:{port}"


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    ca = settings.tls_client_ca.read_bytes() if settings.tls_client_ca else None
    return grpc.ssl_server_credentials(
        [(settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())],
        root_certificates=ca,
        require_client_auth=ca is not None,
    )
