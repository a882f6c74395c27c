"""A real Envoy in front of either transport: calls, streams, errors and cancellation pass through it."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.h2grpc.served import BOTH, Caller, ends_with, serving
from tests.servers.envoy import Envoy, http2_proxy
from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.router.transport.call import Call


async def echo(request: bytes, _: Call) -> bytes:
    if request == b"abort":
        raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, "no such thing"))
    return request


async def each(requests: AsyncIterator[bytes], _: Call) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@pytest.mark.parametrize("transport", BOTH)
async def test_calls_and_streams_pass_through_envoy(transport: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hold(_: bytes, __: Call) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    messages = [b"", bytes(100_000), b"x"] * 20
    async with serving(transport, uu=echo, ss=each, uu_hold=hold) as address:
        envoy = Envoy(http2_proxy(address))
        await asyncio.to_thread(envoy.start)
        try:
            async with Caller(envoy.address) as call:
                assert await asyncio.gather(*(call("uu", one) for one in messages)) == messages
                assert [answer async for answer in call("ss", iter(messages))] == messages
                with ends_with(grpc.StatusCode.NOT_FOUND, "no such thing"):
                    await call("uu", b"abort")
                with ends_with(grpc.StatusCode.DEADLINE_EXCEEDED):
                    await call("uu_hold", timeout=0.5)
                await begun.wait()
                await ended.wait()
        finally:
            await asyncio.to_thread(envoy.close)
