"""A gRPC server over libnghttp2: the thread that answers reads the sockets itself.

gRPC's own server crosses threads several times a call, and each crossing is a wake-up.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

import grpc

from indexer.process.listener import Listener
from indexer.process.tasks import cancel
from indexer.process.tls_files import ServerTls
from router.transport.connection import Connection
from router.transport.library import load_library
from router.transport.limits import Limits
from router.transport.server import Gate

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between two looks at all connections."""
CLOSE_SECONDS = 1.0
"""Longest wait, when the server ends, for clients to read what was sent."""


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
        self._listener: Listener | None = None
        self._looking: asyncio.Task[None] | None = None
        self._all_closed = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too."""
        self._handlers.extend(handlers)

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound."""
        self._listener = Listener(
            self._connection,
            room=lambda: self._limits.connections - len(self._connections),
            seconds=self._limits.handshake_seconds,
            tls=tls.grpc_context if tls else None,
            reuse_port=self._reuse_port,
        )
        bound = await self._listener.start(address)
        self._looking = asyncio.get_running_loop().create_task(self._look())
        return bound

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
        if self._listener is not None:
            await self._listener.stop()
        if self._looking is not None:
            await cancel([self._looking])
        for connection in list(self._connections):
            connection.terminate()
        await self._until_closed(grace)
        for connection in list(self._connections):
            await connection.cut_off()
        await self._until_closed(CLOSE_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    async def _until_closed(self, seconds: float) -> None:
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_closed.wait()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _connection(self, opened: Callable[[], None]) -> Connection:
        def count(connection: Connection) -> None:
            opened()
            self._opened(connection)

        return Connection(
            self._handlers,
            self._limits,
            gate=self._gate,
            opened=count,
            closed=self._closed,
            clock=self._clock,
        )

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._all_closed.clear()

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            for connection in list(self._connections):
                try:
                    connection.look(now)
                except Exception:
                    log.exception("%s: unexpected", connection)
                    connection.abort()
