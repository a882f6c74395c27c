"""Two authorities, a listener whose files can be replaced, and who calls it."""

import asyncio
import inspect
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from tests.servers.certificates import Authority, Certificate
from warmpath.process.http_listener import http_listener
from warmpath.process.tls import ClientTls, ServerTls, TlsPaths


def calling(authority: Authority, certificate: Certificate | None = None) -> ClientTls:
    shown = certificate or Certificate(Path(), Path())
    given = (shown.cert, shown.key) if certificate else (None, None)
    return ClientTls("calls", TlsPaths(authority.ca, *given))


class Stand:
    """Two authorities; a listener's files, which can be replaced."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = Authority(folder, "old"), Authority(folder, "new")
        self.files = self.old.certificate("server").copy("current")
        self.ca = folder / "callers.pem"
        self.ca.write_bytes(self.old.ca.read_bytes())

    def server(self) -> ServerTls:
        given = TlsPaths(self.ca, self.files.cert, self.files.key)
        return ServerTls("listener", given, http_optional=True)

    def https(self, tls: ServerTls | None = None, **more: Any) -> AbstractAsyncContextManager[str]:
        """Serve a page over HTTPS; the context is its address."""
        context = (tls or self.server()).http_context
        return http_listener(page(), "127.0.0.1:0", named="here", tls=context, **more)

    def rotate(self) -> None:
        self.files.replace(self.new.certificate("server-2"))
        self.ca.write_bytes(self.new.ca.read_bytes())


async def who(request: web.Request) -> web.Response:
    assert request.transport is not None
    shown = request.transport.get_extra_info("peercert")
    return web.Response(
        text=dict(part[0] for part in shown["subject"])["commonName"] if shown else ""
    )


def page() -> web.Application:
    app = web.Application()
    app.router.add_get("/who", who)
    return app


async def ask(address: str, tls: ClientTls) -> str:
    """Return the name that the server saw, or the kind of error."""
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"https://{address}/who", ssl=tls.context) as answer,
        ):
            return await answer.text()
    except (aiohttp.ClientError, ConnectionError) as error:
        return type(error).__name__


async def connected(
    address: str, ssl: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=ssl)


async def is_gone(reader: asyncio.StreamReader) -> bool:
    """Wait until the other side has closed or said something; return whether it has closed."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on both kinds of event loop."""

    @wraps(test)
    def on_loop(loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**fixtures))

    own = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = inspect.signature(test).parameters.values()
    on_loop.__signature__ = inspect.Signature([own, *taken])  # type: ignore[attr-defined]
    made = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop", made, ids=["asyncio", "uvloop"])(on_loop)
