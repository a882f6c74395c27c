"""The connection of each process of one router with their parent, which keeps their `Board`.

A process inherits its end of a pair of sockets. Messages are MessagePack behind their length, 4 bytes.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from warmpath.indexer.shared.redis.command import Call, Command, Reply, UnreachableError
from warmpath.router.peers.board import Board, words_of

INTERVALS = (0.02, 0.04)
"""Bounds of the pause between two rounds of bookings among siblings, in seconds."""
LENGTH = 4
ENDED = "the process that keeps this router's bookings does not answer"


async def answer(board: Board, end: socket.socket) -> None:
    """Answer a process's commands until it ends; close its socket then."""
    connection = Connection(*await asyncio.open_connection(sock=end))
    try:
        with contextlib.suppress(OSError, EOFError):
            while True:
                await connection.write(board.run(await connection.read()))
    finally:
        connection.close()


class Connection:
    """Reads and writes messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._length: bytes | None = None
        """The length of a message whose reading was cancelled."""

    async def read(self) -> Any:
        """Return the next message. Raises EOFError at the end."""
        if self._length is None:
            self._length = await self._reader.readexactly(LENGTH)
        packed = await self._reader.readexactly(int.from_bytes(self._length, "big"))
        self._length = None
        return msgspec.msgpack.decode(packed)

    async def write(self, message: Any) -> None:
        """Send a message."""
        packed = msgspec.msgpack.encode(message)
        self._writer.write(len(packed).to_bytes(LENGTH, "big") + packed)
        await self._writer.drain()

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()


class Siblings:
    """Runs commands at the parent's board, in place of Redis."""

    disruptions = 0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._owed = 0
        """Replies that are still to be read, those to earlier commands that did not wait among them."""

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        try:
            async with asyncio.timeout(timeout):
                self._owed += 1
                await self._connection.write(list(map(words_of, asked)))
                while True:
                    replies: list[Reply] = await self._connection.read()
                    self._owed -= 1
                    if not self._owed:
                        return replies
        except (OSError, EOFError):
            return [UnreachableError(ENDED)] * len(asked)

    async def close(self) -> None:
        self._connection.close()


@asynccontextmanager
async def siblings(descriptor: int) -> AsyncIterator[Siblings]:
    """Talk to the parent over an inherited socket while the context is open."""
    streams = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    client = Siblings(Connection(*streams))
    try:
        yield client
    finally:
        await client.close()
