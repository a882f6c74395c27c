"""The publisher's listeners, gRPC's and that of its metrics, and their TLS.

Beside CacheWatch it serves gRPC's standard health service.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from aiohttp import web
from grpc_health.v1 import health_pb2
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from warmpath.process.certificates import auth_context
from warmpath.process.grpc_tls import server_credentials
from warmpath.process.health import HealthService, UnknownServiceError, WatchersFullError
from warmpath.process.listen import GRPC_OPTIONS, is_loopback
from warmpath.process.tls import ServerTls, TlsFilesError, TlsPaths
from warmpath.publisher.settings import Settings
from warmpath.publisher.watch_server import is_named

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
    """Return the certificates of both listeners; None for plain connections.

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
    """Return the application that serves /metrics to callers whose certificate has one of `names`."""
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
    """Return the gRPC handler, which takes and gives bytes."""

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
