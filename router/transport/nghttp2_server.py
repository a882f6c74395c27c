"""A gRPC server over libnghttp2: the thread that answers reads the sockets itself.

gRPC's own server crosses threads several times a call, and each crossing is a wake-up.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable

import grpc

from indexer.process.tls_files import ServerTls
from router.transport.connection import Connection
from router.transport.library import load_library
from router.transport.limits import Limits
from router.transport.server import Gate

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between two looks at all connections."""
BACKLOG = 1024


class Nghttp2Server:
    """Serves asynchronous handlers. To make one raises `router.transport.library.LibraryError`."""

    def __init__(
        self,
        limits: Limits,
        *,
        reuse_port: bool = False,
        gate: Gate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        load_library()
        self._limits = limits
        self._reuse_port = reuse_port
        self._gate = gate
        self._clock = clock
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._connections: set[Connection] = set()
        self._listeners: list[asyncio.Server] = []
        self._looking: asyncio.Task[None] | None = None
        self._all_closed = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too."""
        self._handlers.extend(handlers)

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound."""
        loop = asyncio.get_running_loop()
        context = tls.context if tls else None
        handshake = self._limits.handshake_seconds if tls else None
        if address.startswith("unix:"):
            self._listeners.append(
                await loop.create_unix_server(
                    self._connection,
                    address.removeprefix("unix:"),
                    ssl=context,
                    ssl_handshake_timeout=handshake,
                )
            )
            bound = address
        else:
            host, _, port = address.rpartition(":")
            sockets = listening(host.strip("[]"), int(port), reuse_port=self._reuse_port)
            bound = f"{host}:{sockets[0].getsockname()[1]}"
            for one in sockets:
                self._listeners.append(
                    await loop.create_server(
                        self._connection,
                        sock=one,
                        backlog=BACKLOG,
                        ssl=context,
                        ssl_handshake_timeout=handshake,
                    )
                )
        self._looking = loop.create_task(self._look())
        return bound

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.terminate()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._all_closed.wait()
        for connection in list(self._connections):
            await connection.cut_off()
        if self._looking is not None:
            self._looking.cancel()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _connection(self) -> Connection:
        return Connection(
            self._handlers,
            self._limits,
            gate=self._gate,
            opened=self._opened,
            closed=self._closed,
            clock=self._clock,
        )

    def _opened(self, connection: Connection) -> bool:
        if len(self._connections) >= self._limits.connections:
            return False
        self._connections.add(connection)
        self._all_closed.clear()
        return True

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            for connection in list(self._connections):
                connection.look(now)


def listening(host: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host; an empty one means all of the machine.

    They have one port, which the first gets from the system if `port` is 0. Raises OSError.
    """
    if not host:
        is_dual = socket.has_dualstack_ipv6()
        return [
            socket.create_server(
                ("", port),
                family=socket.AF_INET6 if is_dual else socket.AF_INET,
                reuse_port=reuse_port,
                dualstack_ipv6=is_dual,
                backlog=BACKLOG,
            )
        ]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            at = (str(address[0]), port or (sockets[0].getsockname()[1] if sockets else 0))
            sockets.append(
                socket.create_server(at, family=family, reuse_port=reuse_port, backlog=BACKLOG)
            )
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
