"""A web server of a test's own, on loopback; also one that answers over HTTPS alone."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.servers.certificates import Authority

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(
    respond: Respond, tls: ssl.SSLContext | None = None, most_bytes: int = 1 << 20
) -> AsyncIterator[str]:
    """Answer every request while the context is open; yield host:port."""
    app = web.Application(client_max_size=most_bytes)
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(
    authority: Authority, respond: Respond, *, client_ca: Path | None = None
) -> AsyncIterator[str]:
    """Serve while the context is open; yield host:port. Callers show a certificate of `client_ca`."""
    async with listening(respond, authority.certificate("engine").context(client_ca)) as address:
        yield address
