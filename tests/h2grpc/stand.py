"""A connection without sockets: its server's side, on a loop whose time a test moves, and a client."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tests.h2grpc.http2.lawful_client import LawfulClient
from warmpath.h2grpc.connection import Connection
from warmpath.h2grpc.http2 import session as sessions
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Gate, Method
from warmpath.h2grpc.shared import Shared
from warmpath.process.listener import Places
from warmpath.router.transport.call import refused


class FakeSocket(asyncio.Transport):
    """Reports its end to its protocol when the loop turns, as asyncio's own sockets do."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.written = bytearray()
        self.writes: list[bytes] = []
        self.is_lost = False
        self.is_read = True
        """Whether the protocol wants bytes."""
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        assert isinstance(data, bytes)
        assert not self.is_lost
        self.written += data
        self.writes.append(data)

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def lose(self) -> None:
        """Lose the connection, as if the client had closed it."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._lost)

    close = abort = lose

    def _lost(self) -> None:
        self.is_lost = True
        self._protocol.connection_lost(None)


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """A loop that never waits: its time is `now`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.turn()

    def turn(self, act: Callable[[], Any] = lambda: None, turns: int = 12) -> Any:
        """Run a function on the loop, and everything that follows from it."""

        async def run() -> Any:
            result = act()
            for _ in range(turns):
                await asyncio.sleep(0)
            return result

        return self.run_until_complete(run())


class Stand:
    """The only connection of a server, which has begun."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: Http2Limits | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.loop = FakeTimeLoop()
        self.before = set(sessions.OPEN)
        self.ended = 0
        shared = Shared(methods, limits or Http2Limits(), gate, refused, self.loop.time)
        place = Places(1).enter("", lambda: None)
        assert place is not None
        self.connection = Connection(
            shared, place, opened=lambda _: None, closed=self._closed, arrived=lambda _: None
        )
        self.socket = FakeSocket(self.connection)
        self.loop.turn(lambda: self.connection.connection_made(self.socket))

    def _closed(self, _: Connection) -> None:
        self.ended += 1

    def send(self, *data: bytes) -> None:
        whole = b"".join(data)
        if whole and not self.socket.is_closing():
            self.loop.turn(lambda: self.connection.data_received(whole))

    def close(self) -> None:
        """Lose the connection; nothing of it is left then."""
        self.loop.turn(self.socket.lose)
        self.loop.turn()
        assert self.ended == 1
        assert len(self.connection.calls) == 0
        assert not self.connection.calls.tasks
        assert not asyncio.all_tasks(self.loop)
        assert self.loop.errors == []
        assert set(sessions.OPEN) == self.before
        self.loop.close()


class ClientStand(Stand):
    """A connection with a client, whose windows take `window` bytes."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: Http2Limits | None = None,
        gate: Gate | None = None,
        *,
        window: int = 1 << 20,
    ) -> None:
        super().__init__(methods, limits, gate)
        self.client = LawfulClient(window)
        self.carry()

    def carry(self, step: int = 1 << 20, first: int = 0) -> None:
        """Carry bytes in both directions until none are left: `first`, and then `step` at once."""
        while (data := self.client.to_send()) or self.socket.written:
            self.send(data[:first])
            for at in range(first, len(data), step):
                self.send(data[at : at + step])
            written, self.socket.written = bytes(self.socket.written), bytearray()
            self.client.receive(written)

    def close(self) -> None:
        super().close()
        assert self.client.problems == []
        self.client.close()
