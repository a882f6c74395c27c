"""Serves HTTP, with limits on connections: idle ones would use up the file descriptors."""

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from warmpath.process.address import is_loopback
from warmpath.process.command_line import in_words
from warmpath.process.listener import Listener, Place, Places, State

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MOST_CONNECTIONS = 64
"""The most connections of an HTTP listener, which only serves probes and scrapers."""
CONNECTION_SECONDS = 10.0
"""Longest life of an HTTP connection."""

MOST_SHOWN = 100
"""The most characters of a client's header or path that an error or the log shows."""
_PORT = re.compile(r":[0-9]*\Z")


@asynccontextmanager
async def http_listener(
    app: web.Application,
    listen: str,
    *,
    named: str,
    tls: ssl.SSLContext | None = None,
    most: int = MOST_CONNECTIONS,
    seconds: float = CONNECTION_SECONDS,
) -> AsyncIterator[str]:
    """Serve HTTP at host:port while the context is open, or HTTPS with `tls`; yield the bound address.

    A connection serves one request and lives at most `seconds`, unless its handler enters
    `lasting`. A handler is cancelled when its client has gone. Beyond `most` connections the client
    address with the most loses one (`process.listener`). At a loopback address without TLS, requests
    of other sites' pages are refused (`foreign`). Raises OSError if the address cannot be bound; its
    text begins with `named`, the setting that has the address.
    """
    app.middlewares.append(_once)
    # A certificate proves the name that was asked for, so no other name can lead to a listener with TLS.
    if tls is None and is_loopback(listen) and not listen.startswith("unix:"):
        app.middlewares.append(_of_own_site)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    server = runner.server
    assert server is not None

    listener = Listener(
        partial(_Connection, server, seconds), places=Places(most), seconds=seconds, tls=tls
    )
    try:
        try:
            address = await listener.start(listen)
        except OSError as error:
            raise OSError(f"{named}: cannot bind {listen}: {in_words(error)}") from error
        yield address
    finally:
        await listener.stop()
        await runner.cleanup()


@contextmanager
def lasting(request: web.Request) -> Iterator[None]:
    """Let a request's connection outlast the usual seconds in the context; its handler must end it."""
    connection = request.protocol
    assert isinstance(connection, _Connection)
    connection.place.becomes(State.BUSY)
    try:
        yield
    finally:
        connection.place.becomes(State.IDLE)


class _Connection(web.RequestHandler):
    """A connection with its place; it ends after `seconds`, unless its response lasts."""

    def __init__(self, server: web.Server, seconds: float, place: Place) -> None:
        loop = asyncio.get_running_loop()
        # aiohttp's own servers also pass None on where there is no log.
        super().__init__(server, loop=loop, access_log=None, lingering_time=0.0)  # type: ignore[arg-type]
        self.place = place
        self._seconds = seconds

    def connection_made(self, transport: Any) -> None:
        self.place.end = transport.abort
        self.place.becomes(State.IDLE)
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._end_old, transport)

    def _end_old(self, transport: asyncio.Transport) -> None:
        if self.place.state is not State.BUSY:
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()
        self.place.leave()
        super().connection_lost(exc)


def foreign(hosts: Sequence[str], origins: Sequence[str]) -> str:
    """Return why a request to a loopback address counts as another site's page's; empty: it does not.

    A page may send requests to the loopback addresses of whoever views it, and may read the answers if
    its own name leads to such an address (DNS rebinding). `hosts` and `origins` are the values of the
    headers `Host` and `Origin`, which then have that name.
    """
    for host in hosts:
        if not is_loopback(f"{_PORT.sub('', host).rstrip('.')}:0"):
            return f"Host is {host[:MOST_SHOWN]!r}, which names no loopback address"
    for origin in origins:
        if [origin.partition("://")[2].lower()] != [host.lower() for host in hosts]:
            return f"Origin is {origin[:MOST_SHOWN]!r}, another site than Host"
    return ""


@web.middleware
async def _of_own_site(request: web.Request, handler: Handler) -> web.StreamResponse:
    headers = request.headers
    why = foreign(headers.getall("Host", ()), headers.getall("Origin", ()))
    if not why:
        return await handler(request)
    log.warning("%s: refused to %s: %s", request.path[:MOST_SHOWN], request.remote, why)
    return web.json_response({"error": why}, status=403)


@web.middleware
async def _once(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.force_close()
        raise
    response.force_close()
    return response


def ignore_malformed_http() -> None:
    """Let aiohttp's servers log no traceback for a malformed request, which has been answered."""
    logging.getLogger("aiohttp.server").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is the server's and not the client's."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
