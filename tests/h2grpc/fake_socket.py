"""A socket of asyncio's that keeps what is written, and event loops whose time a test moves."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from warmpath.h2grpc.connection import Connection
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Gate, Method
from warmpath.h2grpc.shared import Shared
from warmpath.process.listener import Places
from warmpath.router.transport.call import refused


def connection_of(
    methods: Mapping[str, Method],
    limits: Http2Limits | None = None,
    *,
    gate: Gate | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    closed: Callable[[Connection], None] = lambda _: None,
) -> Connection:
    """Return a connection of a server that has no other."""
    shared = Shared(methods, limits or Http2Limits(), gate, refused, clock)
    place = Places(1).enter("", lambda: None)
    assert place is not None
    return Connection(shared, place, opened=lambda _: None, closed=closed, arrived=lambda _: None)


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

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def lose(self) -> None:
        """Lose the connection, as if the client had closed it."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._lost)

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

    def turn(self, act: Callable[[], Any] = lambda: None, turns: int = 12) -> Any:
        """Run a function on the loop, and everything that follows from it."""

        async def run() -> Any:
            result = act()
            for _ in range(turns):
                await asyncio.sleep(0)
            return result

        return self.run_until_complete(run())
