"""Both transports end calls alike: deadlines, callers that go away, back-pressure, the server's end."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.h2grpc.served import (
    BOTH,
    SERVICE,
    Caller,
    calling,
    echo,
    ends_with,
    methods_of,
    new_server,
    serving,
)
from tests.router.error_details import ErrorDetails, details_of
from tests.waiting import until
from warmpath.router.transport.call import Call

pytestmark = pytest.mark.parametrize("transport", BOTH)

CHUNK = bytes(1 << 20)


class Held:
    """A handler that waits until the test releases it, and records how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ended = asyncio.Event()
        self.was_cancelled = False
        self.context: Any = None

    async def __call__(self, request: bytes, context: Call) -> bytes:
        self.context = context
        self.begun.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        finally:
            self.ended.set()
        return request


async def test_a_deadline_is_known_to_the_handler_and_ends_it(transport: str) -> None:
    held = Held()

    async def left(_: bytes, context: Call) -> bytes:
        return repr(context.seconds_left).encode()

    async with calling(transport, uu=left, uu_held=held.__call__) as call:
        assert await call("uu") == b"inf"
        # gRPC's client rounds the header up.
        assert 0 < float(await call("uu", timeout=100)) <= 102
        with ends_with(grpc.StatusCode.DEADLINE_EXCEEDED):
            await call("uu_held", timeout=0.05)
        await held.ended.wait()
        assert held.was_cancelled


async def test_a_caller_that_goes_away_cancels_its_call_alone(transport: str) -> None:
    held = Held()
    async with calling(transport, uu=echo, uu_held=held.__call__) as call:
        asked = call("uu_held")
        await held.begun.wait()
        asked.cancel()
        await held.ended.wait()
        assert held.was_cancelled
        assert await call("uu", b"x") == b"x"


async def test_a_connection_that_breaks_cancels_its_calls(transport: str) -> None:
    held = Held()
    async with serving(transport, uu_held=held.__call__, uu=echo) as address:
        call = Caller(address)
        asked = call("uu_held")
        await held.begun.wait()
        await call.channel.close(grace=None)
        await held.ended.wait()
        assert held.was_cancelled
        asked.cancel()
        async with Caller(address, use_local_subchannel_pool=1) as other:
            assert await other("uu", b"x") == b"x"


async def test_a_reader_that_reads_nothing_holds_the_writer_back(transport: str) -> None:
    written = 0
    ended = asyncio.Event()

    async def endless(_: bytes, __: Call) -> AsyncIterator[bytes]:
        nonlocal written
        try:
            while True:
                yield CHUNK
                written += 1
        finally:
            ended.set()

    async with calling(transport, us=endless, uu=echo) as call:
        asked = call("us")
        assert await asked.read() == CHUNK
        before = -1
        while before != written:
            before = written
            for _ in range(20):
                assert await call("uu", b"x") == b"x"
        assert written < 100
        for _ in range(before + 3):
            assert await asked.read() == CHUNK
        asked.cancel()
        await ended.wait()


async def test_a_handler_that_reads_nothing_holds_the_caller_back(transport: str) -> None:
    sent = 0
    held = Held()

    async def wait(_: object, context: Call) -> bytes:
        return await held(b"", context)

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1000:
            yield CHUNK
            sent += 1

    async with calling(transport, su=wait, uu=echo) as call:
        asked = call("su", endless())
        await held.begun.wait()
        before = -1
        while before != sent:
            before = sent
            for _ in range(20):
                assert await call("uu", b"x") == b"x"
        assert sent < 100
        held.let_go.set()
        assert await asked == b""


async def test_writing_to_a_call_that_has_ended_is_cancelled(transport: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def write(_: bytes, call: Call) -> None:
        await call.write(b"one")
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            while True:
                await call.write(b"one")
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            ended.set()
            raise

    async with calling(transport, us=write) as call:
        asked = call("us")
        assert await asked.read() == b"one"
        await begun.wait()
        asked.cancel()
        await ended.wait()


async def test_a_server_that_stops_lets_calls_end_within_their_grace(transport: str) -> None:
    held = Held()
    server = new_server(transport, methods_of(uu_held=held.__call__))
    address = await server.start("127.0.0.1:0")
    async with Caller(address) as call:
        asked = asyncio.ensure_future(call("uu_held", b"x"))
        await held.begun.wait()
        stopping = asyncio.create_task(server.stop(60))
        host, _, port = address.rpartition(":")
        await until(lambda: not _listens(host, int(port)))
        held.let_go.set()
        assert await asked == b"x"
        await stopping
        assert not held.was_cancelled
        with ends_with(grpc.StatusCode.UNAVAILABLE):
            await call("uu_held")


async def test_a_server_that_stops_cuts_off_calls_past_their_grace(transport: str) -> None:
    held = Held()
    server = new_server(transport, methods_of(uu_held=held.__call__))
    async with Caller(await server.start("127.0.0.1:0")) as call:
        asked = asyncio.ensure_future(call("uu_held", b"x"))
        await held.begun.wait()
        await server.stop(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await asked
        if transport == "nghttp2":
            told = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "ENDING", {}, 0.0, None)
            assert details_of(raised.value) == told
        await held.ended.wait()
        assert held.was_cancelled


async def test_a_synchronous_client_in_another_thread_is_served(transport: str) -> None:
    async def twice(requests: AsyncIterator[bytes], _: Call) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request + request

    def ask(address: str) -> list[bytes]:
        with grpc.insecure_channel(address) as channel:
            one: Any = channel.unary_unary(f"/{SERVICE}/uu")
            many: Any = channel.stream_stream(f"/{SERVICE}/ss")
            return [one(b"x"), *many(iter([b"a", b"b"]))]

    async with serving(transport, uu=echo, ss=twice) as address:
        assert await asyncio.to_thread(ask, address) == [b"x", b"aa", b"bb"]


def _listens(host: str, port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((host, port)) == 0
