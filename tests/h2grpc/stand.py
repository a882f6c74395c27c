"""A connection without sockets: its server's side, and a client that keeps to HTTP/2."""

import asyncio
from collections.abc import Mapping

from tests.h2grpc.fake_socket import FakeSocket, FakeTimeLoop, connection_of
from tests.h2grpc.http2.lawful_client import LawfulClient
from warmpath.h2grpc.http2 import session as sessions
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Gate, Method


class Stand:
    """A connection that has begun, on a loop whose time a test moves."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: Http2Limits | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.loop = FakeTimeLoop()
        self.before = set(sessions.OPEN)
        self.connection = connection_of(methods, limits, gate=gate)
        self.socket = FakeSocket(self.connection)
        self.loop.turn(lambda: self.connection.connection_made(self.socket))

    def send(self, *data: bytes) -> None:
        self.loop.turn(lambda: self.connection.data_received(b"".join(data)))

    def close(self) -> None:
        """Lose the connection; nothing of it is left then."""
        self.loop.turn(self.socket.lose)
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

    def carry(self, step: int = 1 << 20) -> None:
        """Carry bytes in both directions, `step` at once, until none are left."""
        while (data := self.client.to_send()) or self.socket.written:
            for at in range(0, len(data), step):
                self.send(data[at : at + step])
            written, self.socket.written = bytes(self.socket.written), bytearray()
            self.client.receive(written)

    def close(self) -> None:
        super().close()
        assert self.client.problems == []
        self.client.close()
