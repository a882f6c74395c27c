"""A gRPC server over libnghttp2: the thread that answers reads the sockets itself.

gRPC's own server crosses threads several times a call, and each crossing is a wake-up.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

import grpc

from warmpath.h2grpc.call import Call
from warmpath.h2grpc.connection import Connection, Place
from warmpath.h2grpc.http2.library import load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Explain, Gate, Method, unexplained
from warmpath.h2grpc.shared import Shared

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between two looks at all connections."""
RETRY_SECONDS = 1.0
"""The time after which a client may repeat a call that was ended because of `received_bytes`."""
LATE_SECONDS = 1.0
"""The age from which a message that is not complete counts as one whose rest may never come."""
CLOSE_SECONDS = 1.0
"""Longest wait, when the server ends, for clients to read the bytes that were sent."""


class Server:
    """Answers the calls of the connections that a listener hands to it; it opens no sockets."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: Http2Limits,
        *,
        gate: Gate | None = None,
        explain: Explain = unexplained,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve `methods` by their names, /SERVICE/METHOD.

        `explain` makes the refusals of the server itself. Raises `h2grpc.http2.library.LibraryError`.
        """
        load_library()
        # Compiled now, and not while the first client waits.
        from warmpath.h2grpc.http2 import callbacks  # noqa: F401, PLC0415

        self._limits = limits
        self._shared = Shared(methods, limits, gate, explain, clock)
        self._connections: set[Connection] = set()
        self._all_closed = asyncio.Event()
        self._may_arrive = limits.received_bytes
        """Bytes that may arrive before those that wait to be read are counted."""

    def connection(self, place: Place) -> Connection:
        """Return the asyncio protocol of a new connection, whose place is `place`."""
        return Connection(
            self._shared, place, opened=self._opened, closed=self._closed, arrived=self._arrived
        )

    def go_away(self) -> int:
        """Tell clients to call no more on their connections; return the number of connections."""
        for connection in self._connections:
            connection.go_away()
        self._shared.announced.end_refused()
        return len(self._connections)

    async def close(self, grace: float) -> None:
        """Close all connections; cut off calls that have not ended after `grace` seconds."""
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

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._all_closed.clear()

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _arrived(self, size: int) -> None:
        """Take note of `size` bytes; if too many may wait unread, count them and end some calls."""
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

        Calls whose message has been incomplete for longest, from `LATE_SECONDS` on, end first; then
        the latest calls of the connections that hold the most.
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
        key = "received-bytes"
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        text = f"the calls of all clients hold {self._limits.received_bytes} bytes ({key})"
        refusal = self._shared.explain(
            code, text, "OVERLOADED", retry_seconds=RETRY_SECONDS, limit=key
        )
        freed = ended = 0
        for *_, number in sorted(ordered):
            if freed >= size:
                break
            freed += calls[number].held
            ended += 1
            calls[number].give_up(refusal)
        log.info("%d calls ended: %s", ended, text)
        return freed

    async def look(self) -> None:
        """End calls and connections that exceed their time limits, until cancelled (LOOK_SECONDS)."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._shared.clock()
            while self._shared.announced.end_late(now):  # noqa: ASYNC110  other work has its turn
                await asyncio.sleep(0)
            for connection in list(self._connections):
                try:
                    connection.look(now)
                except Exception:
                    log.exception("%s: unexpected", connection)
                    connection.abort()
