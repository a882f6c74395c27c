"""The publisher's composition root: an engine's ranks, their journal, the gRPC server and its TLS."""

import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import zmq.asyncio
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from indexer.follow.connect import Engine, Patience, connections
from indexer.follow.endpoint import EXPOSED, is_exposed
from indexer.keys.key import fingerprint
from indexer.process.grpc_health import HealthService
from indexer.process.listen import GRPC_OPTIONS, http_listener
from indexer.process.tasks import Work, cancel, kept, watched
from indexer.shared.layout.names import Names
from indexer.shared.layout.schema import tell_of_server
from indexer.shared.redis.address import AddressError
from indexer.shared.redis.command import Redis
from indexer.shared.sweep.sweeper import sweep_forever
from indexer.shared.writer.machine import BUCKET_LIFE, Writer
from indexer.shared.writer.run import News, random_base, write
from indexer.watch.engine_cache import collect_forever, engine_cache
from indexer.watch.pod_cache import PodCache
from publisher.health import health_handler
from publisher.metrics import PublisherCollector
from publisher.places import Places
from publisher.watch_server import WatchServer

log = logging.getLogger(__name__)

COLLECT_SECONDS = 0.005
"""The longest time before a change is sent on: less than an engine's step."""
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 1.0
SLOW_SECONDS = 10.0
"""A watcher that lets a message wait for longer is ended; its router then asks for a snapshot."""
PENDING_BYTES = 64 << 20
TIMEOUT_OF_A_LEASE = 0.2
"""The timeout of a round trip to Redis, as a share of the lease."""
PATIENCE = Patience(replay_seconds=10.0, reconnect_seconds=0.25, max_frame_bytes=64 << 20)
MOST_REQUEST_BYTES = 16 << 10
"""The most bytes of a request, which has a keyspace, an epoch and a number, or a service's name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `warmpath publish`, which its `--help` explains (`publisher.__main__`)."""

    pod: str
    model: str
    engine: str
    events: str
    replay: str
    topic: str
    ranks: int
    first_rank: int
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
    advertise: str = ""
    """Where others reach the publisher; empty: at `listen`, or nowhere if that is a wildcard."""
    redis: str = ""
    """URL of the shared index; empty: the publisher writes to none."""
    redis_prefix: str = "warmpath"
    redis_user: str = ""
    redis_password_file: str = ""
    redis_ca: str = ""
    redis_cert: str = ""
    redis_key: str = ""
    redis_lease_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Publishing:
    """A running publisher."""

    address: str
    epoch: str
    cache: PodCache
    server: WatchServer


@asynccontextmanager
async def publishing(settings: Settings) -> AsyncIterator[Publishing]:
    """Publish for as long as the context is open.

    Raises OSError for a file or port that cannot be opened, ValueError for a wrong setting of Redis.
    """
    async with AsyncExitStack() as stack:
        engine = _engine(settings)
        if is_exposed(engine.events):
            log.warning(EXPOSED, engine.pod, engine.events)
        cache = engine_cache(
            engine,
            hash_seed=settings.hash_seed,
            journal_bytes=settings.journal_bytes,
            pending_bytes=PENDING_BYTES,
            stale_after=STALE_SECONDS,
            segmented=bool(settings.redis),
            clock=time.monotonic,
        )
        keyspace = fingerprint(settings.model, settings.hash_seed)
        server = WatchServer(
            cache,
            keyspace=keyspace,
            places=Places(settings.max_watchers, slow_seconds=SLOW_SECONDS, clock=time.monotonic),
            heartbeat=HEARTBEAT_SECONDS,
        )
        # Connects before anything listens, because Redis' settings may be wrong.
        redis = await _connect(settings, stack) if settings.redis else None
        context = zmq.asyncio.Context()
        stack.callback(context.destroy, linger=0)
        health = HealthService(lambda: all(rank.is_connected for rank in cache.ranks), ("",))
        address = await _serve(settings, server, health, stack)
        writer = _writer(settings, cache, keyspace, address) if redis else None
        collector = PublisherCollector(cache, server, writer, time.monotonic)
        await _serve_metrics(settings.metrics_listen, collector, stack)
        news = News()
        tell = [server.tell, news.tell]
        works = [
            *connections(engine, cache.ranks, context, PATIENCE),
            Work(
                "collecting changes", partial(collect_forever, cache, tell, pause=COLLECT_SECONDS)
            ),
            Work("telling health watchers", health.keep_telling),
            Work("ending watchers that do not read", server.end_slow),
        ]
        if redis and writer:
            timeout = settings.redis_lease_seconds * TIMEOUT_OF_A_LEASE
            writing = partial(write, redis, writer, news, timeout=timeout)
            owner = f"publisher of {settings.pod} {secrets.token_hex(4)}"
            names = Names(settings.redis_prefix)
            sweep = partial(sweep_forever, redis, names, owner=owner, clock=time.monotonic)
            works += [
                Work("writing to the shared index", writing),
                Work("sweeping the shared index", sweep),
            ]
            telling = watched(tell_of_server(redis), "looking at the Redis server")
            stack.push_async_callback(cancel, [telling])
        stack.push_async_callback(cancel, [kept(work) for work in works])
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
        first_rank=settings.first_rank,
        blocks=settings.blocks,
        block_size=settings.block_size,
    )


async def _connect(settings: Settings, stack: AsyncExitStack) -> Redis:
    try:
        # redis-py is an extra: a publisher that only serves gRPC does not need it.
        from indexer.shared.redis.connect import RedisSettings, SettingsError, connect  # noqa: PLC0415
    except ImportError as error:
        raise OSError(f"--redis: needs warmpath[redis]: {error}") from error
    reached = RedisSettings(
        url=settings.redis,
        user=settings.redis_user,
        password_file=settings.redis_password_file,
        ca=settings.redis_ca,
        cert=settings.redis_cert,
        key=settings.redis_key,
        named="--redis-",
    )
    try:
        redis = await connect(reached)
    except AddressError as error:
        raise ValueError(f"--redis: {error}") from error
    except SettingsError as error:
        raise ValueError(str(error)) from error
    stack.push_async_callback(redis.close)
    return redis


def _writer(settings: Settings, cache: PodCache, keyspace: str, address: str) -> Writer:
    return Writer(
        Names(settings.redis_prefix),
        cache,
        owner=secrets.token_hex(8),
        keyspace=keyspace,
        model=settings.model,
        watch=settings.advertise or (address if _is_reachable(address) else ""),
        take_over=True,
        lease=settings.redis_lease_seconds,
        bucket_life=BUCKET_LIFE,
        random_base=random_base,
        clock=time.monotonic,
        place=settings.redis.partition("://")[2],
    )


def _is_reachable(address: str) -> bool:
    """Return whether others can connect to this address; to a wildcard they cannot."""
    return address.rpartition(":")[0].strip("[]") not in {"0.0.0.0", "::", ""}  # noqa: S104


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
    await stack.enter_async_context(http_listener(app, listen, named="--metrics-listen"))


async def _serve(
    settings: Settings, watch: WatchServer, health: HealthService, stack: AsyncExitStack
) -> str:
    options = [
        *GRPC_OPTIONS,
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MOST_REQUEST_BYTES),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((watch.handler(), health_handler(health)))
    try:
        credentials = _credentials(settings)
        if credentials is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, credentials)
    except RuntimeError as error:
        problem = f"--listen: cannot bind {settings.listen}"
        if settings.tls_cert is not None:
            problem += ", or --tls-cert and --tls-key do not hold a PEM certificate and its key"
        raise OSError(problem) from error
    await server.start()
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
