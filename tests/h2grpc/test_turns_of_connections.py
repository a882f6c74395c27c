"""A read of many small frames does not keep other connections waiting."""

import asyncio

import pytest

from tests.h2grpc.fake_socket import FakeSocket, FakeTimeLoop, connection_of
from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.served import MISSING
from tests.h2grpc.small_service import Service
from warmpath.h2grpc import connection as module
from warmpath.h2grpc.http2.limits import Http2Limits

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

RECEIVE_BYTES = 16 << 10
SENT = [b"%d" % number * 3 for number in range(5000)]
WHOLE = (
    raw.PREFACE + raw.settings() + raw.headers(1, raw.fields("Take"))
    + b"".join(raw.data(1, raw.message(one)) for one in SENT) + raw.data(1, b"", raw.END_STREAM)
)  # fmt: skip


class Stand:
    def __init__(self) -> None:
        self.loop = FakeTimeLoop()
        self.service = Service()
        self.connection = connection_of(self.service.methods(), Http2Limits())
        self.socket = FakeSocket(self.connection)
        self.loop.turn(lambda: self.connection.connection_made(self.socket))

    def leave(self) -> None:
        self.loop.turn(self.socket.lose)
        assert not asyncio.all_tasks(self.loop)
        assert self.loop.errors == []
        self.loop.close()


def test_a_long_read_is_taken_in_turns_and_no_more_is_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(module, "RECEIVE_BYTES", RECEIVE_BYTES)
    stand = Stand()
    # The stream's window lets no more than this through.
    first, second = WHOLE[: 2 * RECEIVE_BYTES], WHOLE[2 * RECEIVE_BYTES : 60_000]

    def receive() -> None:
        stand.connection.data_received(first)
        assert not stand.socket.is_read
        assert len(stand.connection._rest) == RECEIVE_BYTES
        # Bytes that asyncio had already follow those that wait.
        stand.connection.data_received(second)

    stand.loop.turn(receive)
    assert stand.socket.is_read
    stand.loop.turn(lambda: stand.connection.data_received(WHOLE[60_000:]), turns=30)
    assert stand.service.read == SENT
    stand.leave()


def test_a_connection_that_ends_in_a_turn_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(module, "RECEIVE_BYTES", RECEIVE_BYTES)
    stand = Stand()

    def receive() -> None:
        stand.connection.data_received(WHOLE)
        stand.socket.lose()

    stand.loop.turn(receive)
    assert len(stand.service.read) < len(SENT)
    stand.leave()
