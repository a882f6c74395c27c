"""The publisher's composition root: an engine's ranks, their journal, and the listeners with their TLS.

Beside CacheWatch it serves gRPC's standard health service.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio
import zmq.asyncio
from aiohttp import web
from grpc_health.v1 import health_pb2
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from warmpath.indexer.follow.connect import connections
from warmpath.indexer.follow.endpoint import EXPOSED, is_exposed
from warmpath.indexer.follow.instance import EngineTls, Patience
from warmpath.indexer.follow.stream_source import Clock
from warmpath.indexer.keys.key import fingerprint
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import log_server_warnings
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.sweep.sweeper import Sweeper
from warmpath.indexer.shared.writer.machine import BUCKET_LIFE, Writer
from warmpath.indexer.shared.writer.run import write
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.process.address import HostPort, is_loopback
from warmpath.process.grpc_tls import server_credentials
from warmpath.process.health import HealthService, UnknownServiceError, WatchersFullError
from warmpath.process.http_listener import http_listener
from warmpath.process.listener import GRPC_OPTIONS
from warmpath.process.reread import keep_current
from warmpath.process.tasks import Work, cancel, kept, watched
from warmpath.process.tls import ClientTls, ServerTls, TlsFilesError, TlsPaths, auth_context
from warmpath.publisher.metrics import PublisherCollector
from warmpath.publisher.settings import Settings
from warmpath.publisher.watch_server import WatchServer, is_named

log = logging.getLogger(__name__)

MOST_REQUEST_BYTES = 16 << 10
"""Most bytes of a request, which has a keyspace, an epoch and a number, or a service's name."""
FLAGS = {"ca": "--tls-client-ca", "cert": "--tls-cert", "key": "--tls-key"}


def exposed(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield each listener that others reach unprotected: its flag, its address, what it lacks."""
    given = ("--tls-cert", settings.tls_cert), ("--tls-client-ca", settings.tls_client_ca)
    lacks = [flag for flag, file in given if not file]
    listens = ("--listen", settings.listen), ("--metrics-listen", settings.metrics_listen)
    for flag, address in listens:
        if lacks and address and not is_loopback(address):
            yield flag, address, " and ".join(lacks)


def listeners_tls(settings: Settings) -> ServerTls | None:
    """Return the certificates of the gRPC and metrics listeners; None for plain connections.

    A warning is logged for each listener that other machines reach unprotected. Raises OSError, which
    names the flag.
    """
    for flag, address, lacks in exposed(settings):
        log.warning("%s: other machines reach %s, which lacks %s", flag, address, lacks)
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    paths = TlsPaths(settings.tls_client_ca, settings.tls_cert, settings.tls_key)
    try:
        return ServerTls("--tls-cert", paths)
    except TlsFilesError as error:
        raise OSError(f"{FLAGS[error.part]}: {error.problem}") from error


@asynccontextmanager
async def grpc_listener(
    listen: str, tls: ServerTls | None, handlers: Sequence[grpc.GenericRpcHandler]
) -> AsyncIterator[str]:
    """Serve gRPC while the context is open; yield the bound address.

    Raises OSError if the address cannot be bound.
    """
    options = [
        *GRPC_OPTIONS,
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MOST_REQUEST_BYTES),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(handlers)
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, server_credentials(tls))
    except RuntimeError as error:
        raise OSError(f"--listen: cannot bind {listen}") from error
    await server.start()
    try:
        yield f"{listen.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(0)


def metrics_app(collector: Collector, names: Sequence[str]) -> web.Application:
    """Return the application that serves /metrics to callers with one of `names` (`is_named`)."""
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
        shown = auth_context(request.get_extra_info("peercert"))
        if not is_named(shown, names):
            problem = "no name in the certificate is one of those allowed (--tls-client-name)"
            log.warning("%s: refused /metrics: %s", request.remote, problem)
            return web.Response(status=403, text=f"{problem}\n")
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


def health_handler(health: HealthService) -> grpc.GenericRpcHandler:
    """Return the gRPC handler of the health service, which takes and gives bytes."""

    async def check(raw: bytes, context: Context) -> bytes:
        try:
            return health.check(raw)
        except UnknownServiceError:
            return await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        except ValueError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def watch(raw: bytes, context: Context) -> None:
        try:
            async with aclosing(health.watch(raw)) as statuses:
                async for status in statuses:
                    await context.write(status)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except WatchersFullError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    handlers: dict[str, Any] = {
        "Check": grpc.unary_unary_rpc_method_handler(check),
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


COLLECT_SECONDS = 0.005
"""The longest time before a change is sent on: less than an engine's step."""
HEARTBEAT_SECONDS = 1.0
STALE_SECONDS = 1.0
SLOW_SECONDS = 10.0
"""The longest time that a watcher may let a message wait."""
TIMEOUT_OF_A_LEASE = 0.2
"""The timeout of a round trip to Redis, as a share of the lease."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """A running publisher."""

    address: str
    cache: PodCache
    server: WatchServer


@asynccontextmanager
async def publishing(settings: Settings) -> AsyncIterator[Publishing]:
    """Publish for as long as the context is open.

    Raises OSError for a file or port that cannot be opened, ValueError for a wrong setting of Redis.
    """
    async with AsyncExitStack() as stack:
        if is_exposed(settings.events):
            log.warning(EXPOSED, settings.pod, settings.events)
        cache = PodCache(settings.pod, Journal(secrets.token_hex(8), settings.journal_bytes))
        for source in settings.sources():
            cache.add(
                source, hash_seed=settings.hash_seed, stale_after=STALE_SECONDS,
                segmented=bool(settings.redis), clock=time.monotonic,
            )  # fmt: skip
        keyspace = fingerprint(settings.model, settings.hash_seed)
        server = WatchServer(
            cache, keyspace=keyspace, most=settings.max_watchers, heartbeat=HEARTBEAT_SECONDS,
            slow_seconds=SLOW_SECONDS, names=settings.tls_client_name,
        )  # fmt: skip
        tls, engine_tls = listeners_tls(settings), _engine_tls(settings)
        # Connects before anything listens, because Redis' settings may be wrong.
        redis = await _connect(settings, stack) if settings.redis else None
        context = zmq.asyncio.Context()
        stack.callback(context.destroy, linger=0)
        health = HealthService({"": lambda: all(rank.is_connected for rank in cache.ranks)})
        handlers = server.handler(), health_handler(health)
        address = await stack.enter_async_context(grpc_listener(settings.listen, tls, handlers))
        writer = _writer(settings, cache, keyspace, address) if redis else None
        collector = PublisherCollector(
            cache, server, writer, time.monotonic, tls=[("listen", tls), ("engine", engine_tls)]
        )
        if listen := settings.metrics_listen:
            app = metrics_app(collector, settings.tls_client_name)
            context_of_http = tls.http_context if tls else None
            at = http_listener(app, listen, named="--metrics-listen", tls=context_of_http)
            await stack.enter_async_context(at)
        news = asyncio.Event()
        wake = [server.wake, news.set]
        files = [one.files for one in (tls, engine_tls) if one is not None]
        works = [
            *connections(settings, cache.ranks, context, Patience(tls=EngineTls(engine_tls))),
            Work(
                "collecting changes",
                partial(collect_forever, cache, wake, pause=COLLECT_SECONDS, clock=time.monotonic),
            ),
            Work("notifying health watchers", health.keep_notifying),
            Work("reading certificates", partial(keep_current, files)),
        ]
        if redis and writer:
            timeout = settings.redis_lease_seconds * TIMEOUT_OF_A_LEASE
            writing = partial(write, redis, writer, news, timeout=timeout)
            owner = f"publisher of {settings.pod} {secrets.token_hex(4)}"
            names = KeyNames(settings.redis_prefix)
            sweeper = Sweeper(redis, names, owner=owner, clock=time.monotonic)
            works += [
                Work("writing to the shared index", writing),
                Work("sweeping the shared index", sweeper.run),
            ]
            notifying = watched(log_server_warnings(redis), "looking at the Redis server")
            stack.push_async_callback(cancel, [notifying])
        stack.push_async_callback(cancel, [kept(work) for work in works])
        yield Publishing(address, cache, server)


async def collect_forever(
    cache: PodCache, wake: Sequence[Callable[[], None]], *, pause: float, clock: Clock
) -> NoReturn:
    """Put changes into the journal each `pause` seconds; call each of `wake` after new entries."""
    sequence = 0
    while True:
        for rank in cache.ranks:
            rank.tick()
        cache.collect()
        cache.pulse.beat(clock())
        # A snapshot for one watcher may have collected changes that the others do not know of yet.
        if cache.journal.sequence != sequence:
            sequence = cache.journal.sequence
            for one in wake:
                one()
        await asyncio.sleep(pause)


def _engine_tls(settings: Settings) -> ClientTls:
    paths = TlsPaths(settings.engine_ca, settings.engine_cert, settings.engine_key)
    try:
        return ClientTls("--engine-ca", paths)
    except TlsFilesError as error:
        raise OSError(f"--engine-{error.part}: {error.problem}") from error


async def _connect(settings: Settings, stack: AsyncExitStack) -> Redis:
    try:
        # redis-py is an extra: a publisher that only serves gRPC does not need it.
        from warmpath.indexer.shared.redis.connect import RedisSettings, connect  # noqa: PLC0415
    except ImportError as error:
        raise OSError(f"--redis: needs warmpath-router[redis]: {error}") from error
    redis = await connect(
        RedisSettings(settings.redis, **settings.redis_access(), named="--redis-")
    )
    stack.push_async_callback(redis.close)
    return redis


def _writer(settings: Settings, cache: PodCache, keyspace: str, address: str) -> Writer:
    host, _ = HostPort.of(address)
    return Writer(
        KeyNames(settings.redis_prefix),
        cache,
        owner=secrets.token_hex(8),
        keyspace=keyspace,
        model=settings.model,
        watch=settings.advertise or ("" if host in {"0.0.0.0", "::", ""} else address),  # noqa: S104
        lease=settings.redis_lease_seconds,
        bucket_life=BUCKET_LIFE,
        clock=time.monotonic,
        place=settings.redis.partition("://")[2],
    )
