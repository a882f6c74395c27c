"""A gate's calls are refused with their headers alone; all others go on, and streams are left as they were."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.h2grpc.served import LIMITS, MISSING, Caller, echo, ends_with, methods_of
from warmpath.h2grpc.method import Gate, Refusal
from warmpath.router.transport.nghttp2 import Nghttp2Server

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


class Rooms(Gate):
    """A gate with as much room as the test gives it for each read of the socket."""

    def __init__(self, rooms: tuple[int, int] | None) -> None:
        self.methods = {"/t.T/uu": False, "/t.T/uu_urgent": True, "/test.Echo/uu": False}
        self.refuses_with = Refusal(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", (("why", "test"),)
        )
        self.given = rooms
        self.ends_with: Refusal | None = None
        self.out: list[str] = []

    @property
    def refusal(self) -> Refusal:
        return self.refuses_with

    def rooms(self, client: str) -> tuple[int, int] | None:
        assert client
        return self.given

    def ending(self, method: str) -> Refusal | None:
        return self.ends_with if method in self.methods else None

    def ended(self, method: str, refusal: Refusal, seconds: float) -> None:
        self.out.append(f"{method}: {refusal.reason} after {seconds:g} s")

    def refused(self, method: str, count: int) -> None:
        self.out += [method] * count


@asynccontextmanager
async def serving(gate: Gate) -> AsyncIterator[str]:
    functions = {"uu": echo, "uu_urgent": echo, "uu_other": echo}
    methods = methods_of("t.T", **functions) | methods_of("test.Echo", **functions)
    server = Nghttp2Server(methods, LIMITS, gate=gate)
    address = await server.start("127.0.0.1:0")
    try:
        yield address
    finally:
        await server.stop(0)


async def test_a_call_without_room_ends_with_the_refusal_and_the_next_one_goes_on() -> None:
    gate = Rooms((0, 0))
    async with serving(gate) as address, Caller(address) as call:
        for size in (1, 60_000, 300_000):
            with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room") as raised:
                await call("uu", bytes(size))
            assert ("why", "test") in tuple(raised.value.trailing_metadata() or ())
        assert await call("uu_other", b"another method") == b"another method"
        gate.given = (1, 0)
        assert await call("uu", b"room") == b"room"
        gate.given = None
        assert await call("uu", bytes(300_000)) == bytes(300_000)
    assert gate.out == ["/test.Echo/uu"] * 3


async def test_a_call_is_refused_with_what_the_gate_says_at_that_time() -> None:
    gate = Rooms((0, 0))
    async with serving(gate) as address, Caller(address) as call:
        for text in ("no room", "less room than before", "no room"):
            gate.refuses_with = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED, text):
                await call("uu", b"")


async def test_the_calls_of_one_read_share_the_room_and_urgent_ones_have_their_own() -> None:
    gate = Rooms((2, 1))
    async with serving(gate) as address, HostileClient(address) as client:
        sent = ["uu"] * 5 + ["uu_urgent"] * 3 + ["uu_other"]
        streams = list(raw.streams(len(sent)))
        client.send(
            b"".join(
                raw.call(stream, name, b"x") for stream, name in zip(streams, sent, strict=True)
            )
        )
        ended = [await client.frame(raw.HEADERS, stream, raw.END_STREAM) for stream in streams]
        refused = [
            name
            for one, name in zip(ended, sent, strict=True)
            if one.headers.get("grpc-message") == b"no room"
        ]
    assert gate.out == ["/t.T/uu"] * 3 + ["/t.T/uu_urgent"] * 2
    assert sorted(refused) == ["uu"] * 3 + ["uu_urgent"] * 2


async def test_headers_alone_end_at_once_where_the_gate_refuses_since_the_server_ends() -> None:
    gate = Rooms(None)
    async with serving(gate) as address, HostileClient(address) as client:
        gate.ends_with = Refusal(grpc.StatusCode.UNAVAILABLE, "it ends", reason="ENDING")
        client.send(raw.headers(1, raw.fields("uu")), raw.headers(3, raw.fields("uu_other")))
        ended = await client.frame(raw.HEADERS, 1, raw.END_STREAM)
        assert ended.headers["grpc-message"] == b"it ends"
        # What the gate does not refuse waits for its message.
        client.send(raw.data(3, raw.message(b"x"), raw.END_STREAM))
        assert (await client.frame(raw.DATA, 3)).payload == raw.message(b"x")
        assert [text.partition(" after")[0] for text in gate.out] == ["/t.T/uu: ENDING"]


async def test_headers_that_come_in_parts_are_refused_too() -> None:
    gate = Rooms((0, 0))
    async with serving(gate) as address, HostileClient(address) as client:
        block = raw.fields("uu", (b"padding", b"x" * 2000))
        await client.frame(raw.SETTINGS)
        client.send(raw.headers(1, block[:40], flags=0))
        # Another connection uses the same journal meanwhile.
        async with Caller(address) as call:
            assert await call("uu_other", b"y") == b"y"
        client.send(raw.frame(raw.CONTINUATION, raw.END_HEADERS, 1, block[40:]))
        answer = await client.frame(raw.HEADERS, 1)
        assert answer.flags & raw.END_STREAM
        assert answer.headers["grpc-message"] == b"no room"
    assert gate.out == ["/t.T/uu"]


async def test_streams_that_were_refused_leave_room_for_others() -> None:
    gate = Rooms((0, 0))
    async with serving(gate) as address, HostileClient(address) as client:
        for first in range(1, 4000, 400):
            client.send(b"".join(raw.call(first + 2 * n, "uu", b"x") for n in range(200)))
            for n in range(200):
                await client.frame(raw.HEADERS, first + 2 * n)
        gate.given = (1, 0)
        client.send(raw.call(4001, "uu", b"in"))
        assert b"in" in (await client.frame(raw.DATA, 4001)).payload
    assert len(gate.out) == 2000
