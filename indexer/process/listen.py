"""What listens guards its door: connections that say nothing take descriptors which others need."""

import asyncio
import re
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

MOST_CONNECTIONS = 64
"""Of an HTTP listener: probes and scrapers are a handful."""
CONNECTION_SECONDS = 10.0
"""From when a connection is opened until its answer is read."""

MOST_GRPC_CONNECTIONS = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""Of a gRPC server; the other half of the descriptors is for engines, publishers and Redis."""

GRPC_OPTIONS = (
    # Past them a new connection ends at once. Those that make no call make room.
    ("grpc.max_allowed_incoming_connections", MOST_GRPC_CONNECTIONS),
    ("grpc.max_connection_idle_ms", 300_000),
    # A connection that does not begin to speak HTTP/2 ends after this (it is 120 s otherwise).
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Who vanished, or reads nothing from its socket, answers no ping.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Routers ping publishers every 2 s to learn whether they are there.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
"""Of each gRPC server."""

_HOST_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+|):([0-9]{1,5})")


def is_host_port(text: str) -> bool:
    """Whether it is host:port, an IPv6 address in brackets; without a host it is every address."""
    match = _HOST_PORT.fullmatch(text)
    return match is not None and int(match[1]) <= 65535


@asynccontextmanager
async def http_listener(
    app: web.Application,
    listen: str,
    *,
    named: str,
    most: int = MOST_CONNECTIONS,
    seconds: float = CONNECTION_SECONDS,
) -> AsyncIterator[str]:
    """Serve HTTP at host:port for as long as the context is open; yield where.

    A connection is for one request and lives so many `seconds`; past `most` of them the oldest ends, so
    that who keeps connections open keeps nobody out. `named` is the setting with the address. Raises
    OSError, which names it, where the address cannot be bound.
    """
    app.middlewares.append(_once)
    runner = web.AppRunner(app, access_log=None, lingering_time=0.0)
    await runner.setup()
    server = runner.server
    assert server is not None
    loop = asyncio.get_running_loop()

    def accept() -> asyncio.Protocol:
        # Those that are about to end are listed for another turn of the loop.
        known = [one for one in server.connections if _is_open(one)]
        for oldest in known[: max(0, len(known) + 1 - most)]:
            _end(oldest)
        connection = server()
        loop.call_later(seconds, _end, connection)
        return connection

    host, _, port = listen.rpartition(":")
    try:
        listener = await loop.create_server(
            accept, host.strip("[]") or None, int(port), backlog=most
        )
    except OSError as error:
        await runner.cleanup()
        raise OSError(f"{named}: cannot bind {listen}: {error.strerror}") from error
    try:
        bound: socket.socket = listener.sockets[0]
        yield f"{host}:{bound.getsockname()[1]}"
    finally:
        listener.close()
        await runner.cleanup()


@web.middleware
async def _once(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.force_close()
        raise
    response.force_close()
    return response


def _is_open(connection: web.RequestHandler) -> bool:
    return connection.transport is not None and not connection.transport.is_closing()


def _end(connection: web.RequestHandler) -> None:
    transport = connection.transport
    if isinstance(transport, asyncio.Transport):
        transport.abort()
