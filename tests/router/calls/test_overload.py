"""Calls beyond the number that may wait are refused with a hint, before their message is read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import grpc
import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.h2grpc.served import BOTH, SERVICE, Caller, ends_with, new_server
from tests.router.error_details import ErrorDetails, details_of
from tests.router.pick_calls import Codes
from tests.waiting import until
from warmpath.router.admission.admission import LEAST_WAITING, Admission
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.calls.intake import Intake
from warmpath.router.transport.call import Call


class Stand:
    """A server whose loop takes the next call only when the test says so."""

    call: Caller

    def __init__(self, transport: str) -> None:
        self.soon: list[Callable[[], None]] = []
        self.read: list[bytes] = []
        self.address = ""
        self.counts = Codes()
        self.admission = Admission(
            wait_seconds=1e-9,
            soon=self.soon.append,
            clock=asyncio.get_running_loop().time,
            turn_seconds=0.0,
        )
        room = InFlight(1 << 20, 1000, seconds=1.0, clock=lambda: 0.0)
        self.intake = Intake(room, room, self.counts, seconds=1.0, admission=self.admission)

        async def take(message: bytes, call: Call) -> None:
            self.read.append(message)
            call.put(message)

        methods = {
            "uu": self.intake.method("uu", take),
            "uu_urgent": self.intake.method("uu_urgent", take, is_urgent=True),
        }
        named = {
            f"/{service}/{name}": method
            for service in (SERVICE, "t.T")
            for name, method in methods.items()
        }
        self.server = new_server(transport, named)

    def turn(self) -> None:
        self.soon.pop()()

    async def until(self, waiting: int) -> None:
        await until(lambda: self.admission.waiting == waiting)


@pytest.fixture(params=BOTH)
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    """Return one that has answered a call, so that the next one waits."""
    stand = Stand(request.param)
    stand.address = await stand.server.start("127.0.0.1:0")
    async with Caller(stand.address) as stand.call:
        assert await stand.call("uu", b"first") == b"first"
        yield stand
    await stand.server.stop(0)


async def test_the_newest_call_beyond_those_that_may_wait_is_refused_with_a_hint(
    stand: Stand,
) -> None:
    waiting = [asyncio.ensure_future(stand.call("uu", b"%d" % n)) for n in range(LEAST_WAITING)]
    await stand.until(LEAST_WAITING)
    with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED, "limits.wait-seconds") as raised:
        await stand.call("uu", b"refused")
    limit = {"limit": "limits.wait-seconds"}
    told = ErrorDetails(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", limit, 1e-9, 1)
    assert details_of(raised.value) == told
    assert stand.counts.seen == ["RESOURCE_EXHAUSTED"]
    urgent = asyncio.ensure_future(stand.call("uu_urgent", b"urgent"))
    await stand.until(LEAST_WAITING + 1)
    stand.turn()
    assert await urgent == b"urgent"
    for asked in waiting:
        stand.turn()
        assert await asked
    assert sorted(stand.read) == sorted([b"first", b"urgent", b"0", b"1", b"2", b"3"])


async def test_a_client_with_many_calls_gives_way_to_one_with_few(stand: Stand) -> None:
    async with Caller(stand.address, use_local_subchannel_pool=1) as modest:
        waiting = [asyncio.ensure_future(stand.call("uu", b"g")) for _ in range(LEAST_WAITING)]
        await stand.until(LEAST_WAITING)
        asked = asyncio.ensure_future(modest("uu", b"modest"))
        # Which one arrived last, gRPC's threads decide.
        [refused], left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            await refused
        waiting = [one for one in waiting if one in left]
        stand.turn()
        first, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in first] == [b"g"]
        stand.turn()
        assert await asked == b"modest"
        for _ in left:
            stand.turn()
        assert await asyncio.gather(*left) == [b"g"] * len(left)


async def test_a_caller_that_goes_away_while_it_waits_leaves_its_turn(stand: Stand) -> None:
    asked = stand.call("uu", b"gone")
    await stand.until(1)
    asked.cancel()
    await stand.until(0)
    stand.turn()
    assert await stand.call("uu", b"next") == b"next"
    assert stand.read == [b"first", b"next"]


async def test_500_streams_over_many_connections_of_one_address_delay_another_by_one_call(
    stand: Stand,
) -> None:
    stand.admission.wait_seconds = 10.0
    async with AsyncExitStack() as stack:
        for _ in range(20):
            client = HostileClient(stand.address, source="127.0.0.2")
            await stack.enter_async_context(client)
            client.send(*(raw.call(stream, "uu", b"greedy") for stream in raw.streams(25)))
        await stand.until(500)
        asked = asyncio.ensure_future(stand.call("uu", b"modest"))
        await stand.until(501)
        stand.turn()
        stand.turn()
        assert await asked == b"modest"
        assert stand.read.count(b"greedy") <= 2
        assert not stand.admission.refused
