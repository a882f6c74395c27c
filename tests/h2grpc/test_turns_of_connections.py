"""Neither a read of many small frames nor many calls at once keep other connections waiting."""

import asyncio

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.served import MISSING, Service
from tests.h2grpc.stand import Stand
from warmpath.h2grpc import connection as module
from warmpath.h2grpc.begin import MOST_AT_ONCE, Beginnings

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

RECEIVE_BYTES = 16 << 10
SENT = [b"%d" % number * 3 for number in range(5000)]
WHOLE = (
    raw.PREFACE + raw.settings() + raw.headers(1, raw.fields("Take"))
    + b"".join(raw.data(1, raw.message(one)) for one in SENT) + raw.data(1, b"", raw.END_STREAM)
)  # fmt: skip


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(module, "RECEIVE_BYTES", RECEIVE_BYTES)


def test_a_long_read_is_taken_in_turns_and_no_more_is_read_meanwhile() -> None:
    service = Service()
    stand = Stand(service.methods())
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
    assert service.read == SENT
    stand.close()


def test_a_connection_that_ends_in_a_turn_takes_nothing_more() -> None:
    service = Service()
    stand = Stand(service.methods())

    def receive() -> None:
        stand.connection.data_received(WHOLE)
        stand.socket.lose()

    stand.loop.turn(receive)
    assert len(service.read) < len(SENT)
    stand.close()


async def test_thousands_of_calls_of_one_address_keep_no_other_waiting() -> None:
    loop, beginnings, begun = asyncio.get_running_loop(), Beginnings(), list[str]()
    for _ in range(1000):
        beginnings.add(loop, "many", lambda: begun.append("many"))
    assert len(begun) == MOST_AT_ONCE
    beginnings.add(loop, "one", lambda: begun.append("one"))
    await asyncio.sleep(0)
    assert "one" in begun
    assert len(begun) == 2 * MOST_AT_ONCE
    while len(begun) < 1001:
        before = len(begun)
        await asyncio.sleep(0)
        assert before < len(begun) <= before + MOST_AT_ONCE


async def test_a_call_alone_begins_at_once() -> None:
    loop, beginnings, begun = asyncio.get_running_loop(), Beginnings(), list[int]()
    for number in range(3):
        beginnings.add(loop, "one", lambda number=number: begun.append(number))
        assert begun[-1] == number
        await asyncio.sleep(0)
        await asyncio.sleep(0)
