"""A gRPC server over libnghttp2: the thread that answers reads the sockets itself.

gRPC's own server crosses threads several times a call, and each crossing is a wake-up.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

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
ACCEPTED_AT_ONCE = 64
"""Most connections that are accepted before other work has its turn."""
ACCEPT_SECONDS = 1.0
"""Pause after a connection that could not be accepted."""
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
        self._listeners: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        """Listeners that failed to accept a connection, with the timer after which each goes on."""
        self._context: ssl.SSLContext | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._opening = 0
        """Connections that are accepted, and whose TLS handshake has not ended."""
        self._all_closed = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too."""
        self._handlers.extend(handlers)

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound."""
        if address.startswith("unix:"):
            sockets = [listening_at(address.removeprefix("unix:"))]
            bound = address
        else:
            host, _, port = address.rpartition(":")
            sockets = listening(host.strip("[]"), int(port), reuse_port=self._reuse_port)
            bound = f"{host}:{sockets[0].getsockname()[1]}"
        self._context = tls.grpc_context if tls else None
        self._listeners = sockets
        for one in sockets:
            one.setblocking(False)
            self._listen(one)
        self._work(self._look())
        return bound

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            if listener in self._pauses:
                self._pauses.pop(listener).cancel()
            listener.close()
        # A task that never ran would not close its socket.
        await asyncio.sleep(0)
        for work in list(self._working):
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
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

    def _connection(self) -> Connection:
        return Connection(
            self._handlers,
            self._limits,
            gate=self._gate,
            opened=self._opened,
            closed=self._closed,
            clock=self._clock,
        )

    def _work(self, running: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(running)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _listen(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept the connections that wait. Those in their TLS handshake count towards the limit."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The process has no more file descriptors, for example.
                log.warning("cannot accept a connection: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                self._pauses[listener] = loop.call_later(ACCEPT_SECONDS, self._listen, listener)
                return
            if len(self._connections) + self._opening >= self._limits.connections:
                accepted.close()
                continue
            accepted.setblocking(False)
            self._opening += 1
            self._work(self._open(accepted))

    async def _open(self, accepted: socket.socket) -> None:
        seconds = self._limits.handshake_seconds if self._context else None
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, accepted, ssl=self._context, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            # ssl.SSLError and TimeoutError are OSErrors, too.
            log.info("a connection was not opened: %s", error)
        finally:
            self._opening -= 1

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


def listening_at(path: str) -> socket.socket:
    """Return a listening Unix socket; one that a process left behind is replaced. Raises OSError."""
    if Path(path).is_socket():
        Path(path).unlink()
    found = socket.socket(socket.AF_UNIX)
    try:
        found.bind(path)
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


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
