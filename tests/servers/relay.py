"""A TCP relay in front of a server; tests make it slow or narrow, cut it, shut it or pause it.

It runs in a thread of its own, so that tests with and without an event loop can use it.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any, Self

from tests.servers.certificates import Authority, Certificate

CHUNK = 1 << 16


class Relay:
    """Listens on a port of its own. Clients use TLS if `certificate` is given; the server does not."""

    def __init__(
        self,
        target: int,
        *,
        certificate: Certificate | None = None,
        clients_of: Authority | None = None,
    ) -> None:
        self.target = target
        """The server's port; a change counts for new connections."""
        self.latency = 0.0
        """Seconds by which data is delayed, in each direction."""
        self.bytes_per_second = 0
        """Limit for each direction of each connection; 0 for no limit."""
        self.requests_left: int | None = None
        """Bytes that may still pass to the server, over all connections; then all are cut. None: no limit."""
        self.replies_left: int | None = None
        """The same for bytes from the server."""
        self.cuts = 0
        """How often all were cut by these two limits."""
        self.connections = 0
        """Connections accepted so far."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        clients = clients_of.ca if clients_of else None
        self._tls = certificate.context(clients) if certificate else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._flows = asyncio.Event()

    @property
    def url(self) -> str:
        return f"redis{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._do(self._listen())

    def close(self) -> None:
        """Cut everything and end."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Break all connections; new ones are accepted."""
        self._do(self._cut())

    def refuse(self, refuses: bool = True) -> None:
        """Break new connections at once, or no longer; open connections go on."""
        self._refuses = refuses

    def pause(self) -> None:
        """Let nothing through; connections stay, and new ones are accepted."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def resume(self) -> None:
        """Let through what has been held up."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self) -> None:
        self._flows.set()
        # A client that refuses the certificate need not be logged.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._listener.setblocking(False)
        self._begin(self._accept())

    async def _close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            accepted, _ = await self._loop.sock_accept(self._listener)
            self._begin(self._shake_hands(accepted))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        """Serve a connection once its handshake is done, in a task that closing the relay ends.

        asyncio's own server does not close a connection whose handshake is under way.
        """
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls
            )
        except OSError:
            return
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))

    async def _cut(self, gently: asyncio.StreamWriter | None = None) -> None:
        """Break all connections; data written to the `gently` one still arrives."""
        for writer in [*self._writers]:
            if writer is gently:
                writer.close()
            else:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        far: asyncio.StreamWriter | None = None
        try:
            if self._refuses:
                return
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(far)
            ways = [
                self._loop.create_task(self._pass(reader, far, "requests_left")),
                self._loop.create_task(self._pass(far_reader, writer, "replies_left")),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            ends = [end for end in (writer, far) if end]
            for end in ends:
                end.transport.abort()
                self._writers.discard(end)
            await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left_of: str
    ) -> None:
        """Pass data on, each piece delayed by the latency; pieces overlap, as on a real line."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)
        taking = self._loop.create_task(self._take(reader, line))
        try:
            while True:
                due, data = await line.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._flows.wait()
                if not data:
                    return
                left = getattr(self, left_of)
                if left is not None and len(data) >= left:
                    writer.write(data[:left])
                    await writer.drain()
                    setattr(self, left_of, None)
                    self.cuts += 1
                    await self._cut(gently=writer)
                    return
                if left is not None:
                    setattr(self, left_of, left - len(data))
                while data:
                    step = max(1, self.bytes_per_second // 100) if self.bytes_per_second else CHUNK
                    piece, data = data[:step], data[step:]
                    writer.write(piece)
                    await writer.drain()
                    if self.bytes_per_second:
                        await asyncio.sleep(len(piece) / self.bytes_per_second)
                    await self._flows.wait()
        except OSError:
            return
        finally:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking

    async def _take(
        self, reader: asyncio.StreamReader, line: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            await line.put((self._loop.time() + self.latency, data))
