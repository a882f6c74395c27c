"""A gRPC server over libnghttp2: the thread that answers reads the sockets itself.

gRPC's own server crosses threads several times a call, and each crossing is a wake-up.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

import grpc

from warmpath.h2grpc.announced import Announced
from warmpath.h2grpc.call import Call
from warmpath.h2grpc.connection import Connection, journal_of
from warmpath.h2grpc.http2.library import load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.process.listener import Listener
from warmpath.process.places import Place, Places
from warmpath.process.tasks import cancel
from warmpath.process.tls import ServerTls
from warmpath.proto.errors import Reason, details
from warmpath.router.transport.call import Gate

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between two looks at all connections."""
RETRY_SECONDS = 1.0
"""The time after which a call that was ended for its bytes has a chance."""
LATE_SECONDS = 1.0
"""The age from which a message that is not complete counts as one whose rest may never come."""
CLOSE_SECONDS = 1.0
"""Longest wait, when the server ends, for clients to read what was sent."""


class Nghttp2Server:
    """Serves asynchronous handlers. To make one raises `h2grpc.http2.library.LibraryError`."""

    def __init__(
        self,
        limits: Http2Limits,
        *,
        reuse_port: bool = False,
        gate: Gate | None = None,
        full: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`full` is called for each connection that is closed, since there is no place for it.

        Its argument is the client's address.
        """
        load_library()
        # Compiled now, and not while the first client waits.
        from warmpath.h2grpc.http2 import callbacks  # noqa: F401, PLC0415

        self._limits = limits
        self._reuse_port = reuse_port
        self._gate = gate
        self._full = full
        self._clock = clock
        self._journal = journal_of(limits, gate)
        self._announced = Announced(limits.message_seconds, gate, clock)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._connections: set[Connection] = set()
        self._listener: Listener | None = None
        self._looking: asyncio.Task[None] | None = None
        self._all_closed = asyncio.Event()
        self._may_arrive = limits.received_bytes
        """Bytes that may arrive before those that wait to be read are counted."""

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too."""
        self._handlers.extend(handlers)

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound."""
        self._listener = Listener(
            self._connection,
            places=Places(self._limits.connections),
            seconds=self._limits.handshake_seconds,
            tls=tls.grpc_context if tls else None,
            reuse_port=self._reuse_port,
            full=self._full,
        )
        bound = await self._listener.start(address)
        self._looking = asyncio.get_running_loop().create_task(self._look())
        return bound

    def go_away(self) -> int:
        """Tell clients to call no more on their connections; return the number of those told."""
        for connection in self._connections:
            connection.go_away()
        self._announced.end_refused()
        return len(self._connections)

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

    def _connection(self, place: Place) -> Connection:
        return Connection(
            self._handlers,
            self._limits,
            gate=self._gate,
            opened=self._opened,
            closed=self._closed,
            arrived=self._arrived,
            clock=self._clock,
            journal=self._journal,
            announced=self._announced,
            place=place,
        )

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._all_closed.clear()

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _arrived(self, size: int) -> None:
        """Count all that waits to be read, where the newest bytes might make it too much."""
        self._may_arrive -= size
        if self._may_arrive < 0:
            most = self._limits.received_bytes
            waiting = sum(connection.held for connection in self._connections)
            # By then at least a quarter of the limit has arrived, so attacks do not make counting dear.
            if waiting > most * 3 // 4:
                waiting -= self._give_up(waiting - most // 2)
            self._may_arrive = max(most - waiting, most // 4) - size

    def _give_up(self, size: int) -> int:
        """End calls that hold at least `size` bytes, as far as there are any; return how many bytes.

        First those whose message has lacked its rest for longest, from `LATE_SECONDS` on; then the
        latest of the connections that hold the most.
        """
        late = asyncio.get_running_loop().time() - LATE_SECONDS
        ordered: list[tuple[bool, int, float, int]] = []
        calls: list[Call] = []
        for connection in self._connections:
            held = connection.held
            for call in connection.holding():
                if call.held_since <= late and call.is_incomplete:
                    ordered.append((False, 0, call.held_since, len(calls)))
                else:
                    ordered.append((True, -held, -call.held_since, len(calls)))
                calls.append(call)
        key = "server.http2.max-received-bytes"
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        text = f"the calls of all clients hold {self._limits.received_bytes} bytes ({key})"
        told = details(code, text, Reason.OVERLOADED, retry_seconds=RETRY_SECONDS, limit=key)
        freed = ended = 0
        for *_, number in sorted(ordered):
            if freed >= size:
                break
            freed += calls[number].held
            ended += 1
            calls[number].give_up(code, text, told)
        log.info("%d calls ended: %s", ended, text)
        return freed

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            while self._announced.end_late(now):  # noqa: ASYNC110  other work has its turn
                await asyncio.sleep(0)
            for connection in list(self._connections):
                try:
                    connection.look(now)
                except Exception:
                    log.exception("%s: unexpected", connection)
                    connection.abort()
