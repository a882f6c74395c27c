"""The connection of each process of one router with their parent, which keeps their `Board`.

The board answers the commands of `router.peers.exchange` as Redis would, for routers on one machine.
A process inherits its end of a pair of sockets. Messages are MessagePack behind their length, 4 bytes.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from warmpath.indexer.shared.redis.command import Argument, Call, Command, Reply, UnreachableError

Words = Sequence[Argument]
"""A command's words, or a script's name, its key and its arguments."""


def words_of(one: Command | Call) -> Words:
    """Return a command in the form that `Board.run` takes."""
    return one.words if isinstance(one, Command) else (one.script.name, *one.keys, *one.arguments)


class Board:
    """The routers, their bookings and their reports, by the keys of Redis. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, Any] = {}
        """Written bookings (bytes); as dicts the times of routers, and waiting reports by their ids."""
        self._expires: dict[str, float] = {}
        self._numbers = 0
        self._do: dict[str, Callable[..., Any]] = {
            "enrol": self._enrol,
            "SET": self._set,
            "GET": self._kept.get,
            "hand_on": self._hand_on,
            "XRANGE": self._waiting,
            "XDEL": self._delete,
            "DEL": self._let_go,
            "HDEL": self._delete,
        }

    def run(self, asked: Sequence[Words]) -> list[Any]:
        """Carry out commands; return the reply to each. Raises KeyError for one that is not known."""
        self.expire()
        return [self._do[str(name)](key, *rest) for name, key, *rest in asked]

    def expire(self) -> list[str]:
        """Let go what is too old; return the keys that are left."""
        now = self._clock()
        for key in [key for key, at in self._expires.items() if at <= now]:
            self._let_go(key)
        return list(self._kept)

    def _keep(self, key: str, value: Any, milliseconds: int) -> None:
        self._kept[key] = value
        self._expires[key] = self._clock() + milliseconds / 1000

    def _let_go(self, key: str) -> int:
        self._expires.pop(key, None)
        return int(self._kept.pop(key, None) is not None)

    def _enrol(self, key: str, router: str, there: int, listed: int) -> list[bytes]:
        now = self._clock()
        seen = {**self._kept.get(key, {}), router.encode(): now}
        self._keep(
            key, {one: at for one, at in seen.items() if now - at <= listed / 1000}, 2 * listed
        )
        return [one for one, at in seen.items() if now - at <= there / 1000]

    def _set(self, key: str, value: bytes, _: str, milliseconds: str) -> bytes:
        self._keep(key, value, int(milliseconds))
        return b"OK"

    def _hand_on(self, key: str, most: int, milliseconds: int, *reports: bytes) -> int:
        waiting = self._kept.get(key, {})
        taken = reports[: max(0, most - len(waiting))]
        for report in taken:
            self._numbers += 1
            waiting[b"%d" % self._numbers] = report
        self._keep(key, waiting, milliseconds)
        return len(taken)

    def _waiting(self, key: str, *words: str) -> list[tuple[bytes, list[bytes]]]:
        waiting = list(self._kept.get(key, {}).items())[: int(words[-1])]
        return [(name, [b"report", report]) for name, report in waiting]

    def _delete(self, key: str, *names: bytes | str) -> int:
        kept = self._kept.get(key, {})
        plain = (name.encode() if isinstance(name, str) else name for name in names)
        return sum(kept.pop(name, None) is not None for name in plain)


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
        packed = msgspec.msgpack.encode(message)
        self._writer.write(len(packed).to_bytes(LENGTH, "big") + packed)
        await self._writer.drain()

    def close(self) -> None:
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
