"""Listens, and hands each connection to a server over libnghttp2 (`h2grpc`).

HTTP/1.1 is told from HTTP/2 by a connection's first bytes, so that one port serves both.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from warmpath.h2grpc.http2.library import load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Gate, Method
from warmpath.h2grpc.server import Server
from warmpath.process.listener import Listener, Place, Places
from warmpath.process.tasks import cancel
from warmpath.process.tls import ServerTls
from warmpath.router.transport.call import refused

BEGINNING = b"PRI"
"""The beginning of HTTP/2's preface (RFC 9113, 3.4), which is no method of HTTP/1.1."""


class FirstBytes(asyncio.Protocol):
    """The protocol of a connection until its first bytes have come, which may take `seconds`."""

    def __init__(
        self,
        place: Place,
        http2: Callable[[Place], asyncio.Protocol],
        http1: Callable[[Place], asyncio.Protocol],
        seconds: float,
    ) -> None:
        self._place = place
        self._http2 = http2
        self._http1 = http1
        self._seconds = seconds
        self._bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket: Any = cast("asyncio.Transport", transport)
        self._place.end = self._socket.abort
        self._place.works(is_busy=False)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._socket.abort)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        if len(self._bytes) < len(BEGINNING):
            return
        self._timer.cancel()
        make = self._http2 if self._bytes.startswith(BEGINNING) else self._http1
        protocol = make(self._place)
        self._socket.set_protocol(protocol)
        protocol.connection_made(self._socket)
        protocol.data_received(self._bytes)

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._place.leave()


class Nghttp2Server:
    """Serves methods. Making one raises `h2grpc.http2.library.LibraryError` without that library."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: Http2Limits,
        *,
        reuse_port: bool = False,
        gate: Gate | None = None,
        full: Callable[[str], None] = lambda _: None,
        http1: Callable[[Place], asyncio.Protocol] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`full` gets the client's address of each connection that is closed for want of a place.

        `http1` returns the protocol of a connection that speaks HTTP/1.1.
        """
        load_library()
        # This chooses the folder where all compiled code is kept.
        from warmpath.indexer.compiled import jit  # noqa: F401, PLC0415

        self._server = Server(methods, limits, gate=gate, explain=refused, clock=clock)
        self._limits = limits
        self._reuse_port = reuse_port
        self._full = full
        self._http1 = http1
        self._listener: Listener | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound."""
        make: Callable[[Place], asyncio.Protocol] = self._server.connection
        if self._http1 is not None:
            http2, http1, seconds = make, self._http1, self._limits.handshake_seconds
            make = lambda place: FirstBytes(place, http2, http1, seconds)  # noqa: E731
        self._listener = Listener(
            make,
            places=Places(self._limits.connections),
            seconds=self._limits.handshake_seconds,
            tls=tls.grpc_context if tls else None,
            reuse_port=self._reuse_port,
            full=self._full,
        )
        bound = await self._listener.start(address)
        self._looking = asyncio.get_running_loop().create_task(self._server.look())
        return bound

    def go_away(self) -> int:
        """Tell clients to call no more on their connections; return the number of connections."""
        return self._server.go_away()

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
        if self._listener is not None:
            await self._listener.stop()
        if self._looking is not None:
            await cancel([self._looking])
        await self._server.close(grace)
