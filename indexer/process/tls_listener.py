"""A TLS listener with a limit on handshakes.

asyncio's own listener has no limit on handshakes under way and no way to end them, so clients that
connect and send nothing would use up the file descriptors.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from indexer.process.tasks import Work, cancel, kept, watched

PAUSE = 0.1
"""Seconds until connections are accepted again after that has failed, for lack of descriptors say."""


@asynccontextmanager
async def tls_listener(
    accept: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext,
    host: str | None,
    port: int,
    *,
    most: int,
    seconds: float,
) -> AsyncIterator[int]:
    """Listen while the context is open; yield the bound port.

    `accept` returns the protocol of a connection, before its handshake. A handshake has `seconds`;
    beyond `most` the oldest is ended. Raises OSError if the address cannot be bound.
    """
    sockets = await _bind(host, port, backlog=most)
    handshakes = _Handshakes(accept, context, most=most, seconds=seconds)
    tasks = [
        kept(Work("accepting TLS connections", partial(handshakes.accept, one))) for one in sockets
    ]
    try:
        yield int(sockets[0].getsockname()[1])
    finally:
        await cancel(tasks)
        for one in sockets:
            one.close()
        await handshakes.close()


async def _bind(host: str | None, port: int, *, backlog: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            sockets.append(socket.create_server(address, family=family, backlog=backlog))
            sockets[-1].setblocking(False)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


class _Handshakes:
    """The handshakes under way."""

    def __init__(
        self,
        accept: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        most: int,
        seconds: float,
    ) -> None:
        self._accept = accept
        self._context = context
        self._most = most
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[asyncio.Task[None], socket.socket] = {}
        """The connections by their tasks, the oldest first."""

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(PAUSE)
                continue
            for oldest in list(self._under_way)[: max(0, len(self._under_way) + 1 - self._most)]:
                oldest.cancel()
            task = watched(self._shake(connection), "a TLS handshake")
            self._under_way[task] = connection
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End all handshakes."""
        await cancel(self._under_way)

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._under_way.pop(task)
        # A task that is cancelled before it begins does nothing, so this is not in the task.
        if task.cancelled() or task.exception() is not None:
            connection.close()

    async def _shake(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._accept,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
            )
        except OSError:
            # The client has no accepted certificate, does not speak TLS, or has gone.
            connection.close()
