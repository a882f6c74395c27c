"""A web server of a test's own, on loopback."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(respond: Respond, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Answer every request while the context is open; yield host:port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
