"""Both transports serve the same methods alike, behind Envoy too: messages, metadata, statuses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.h2grpc.served import (
    BOTH,
    Caller,
    calling,
    each,
    echo,
    ends_with,
    methods_of,
    new_server,
    serving,
)
from tests.router.error_details import details_of
from tests.servers.envoy import Envoy, http2_proxy
from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.router.transport.call import Call

pytestmark = pytest.mark.parametrize("transport", BOTH)


async def parts(request: bytes, _: Call) -> AsyncIterator[bytes]:
    for byte in request:
        yield bytes((byte,))


async def joined(requests: AsyncIterator[bytes], _: Call) -> bytes:
    return b"".join([request async for request in requests])


async def read_joined(_: object, context: Call) -> bytes:
    found = []
    while (message := await context.read()) is not None:
        found.append(message)
    return b"".join(found)


async def write_parts(request: bytes, context: Call) -> None:
    for byte in request:
        await context.write(bytes((byte,)))


async def write_each(_: object, context: Call) -> None:
    while (message := await context.read()) is not None:
        await context.write(message)


@pytest.mark.parametrize("size", [0, 1, 5, 16_379, 16_384, 65_530, 65_535, 1 << 20])
async def test_all_four_kinds_of_call_carry_messages_of_any_size(transport: str, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    few = [b"", message, b"x", message, b""]
    async with calling(
        transport, uu=echo, us=parts, su=joined, ss=each,
        us_written=write_parts, su_read=read_joined, ss_both=write_each,
    ) as call:  # fmt: skip
        assert await call("uu", message) == message
        for name in ("us", "us_written"):
            assert b"".join([part async for part in call(name, message[:300])]) == message[:300]
        for name in ("su", "su_read"):
            assert await call(name, iter(few)) == b"".join(few)
        for name in ("ss", "ss_both"):
            assert [part async for part in call(name, iter(few))] == few


async def test_metadata_come_as_text_and_as_bytes(transport: str) -> None:
    async def told(_: bytes, context: Call) -> bytes:
        found = dict(context.metadata)
        assert found["text"] == "a value, with %"
        assert found["raw-bin"] == bytes(range(256))
        assert not [key for key in found if key.startswith((":", "grpc-", "te", "content-type"))
                    and key != "text"]  # fmt: skip
        return b""

    sent = (("text", "a value, with %"), ("raw-bin", bytes(range(256))))
    async with calling(transport, uu=told) as call:
        assert await call("uu", metadata=sent) == b""


@pytest.mark.parametrize(
    "text", ["plain", "", "100 %", "ümlaut \N{SNOWMAN}", "two\nlines\r\n", "%41", "a" * 4000]
)
async def test_a_refusal_tells_its_status_its_text_and_its_metadata(
    transport: str, text: str
) -> None:
    told = (("why", "because"), ("last-bin", b"\0\xff"))

    async def refuse(_: bytes, __: Call) -> bytes:
        raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, text, told))

    async with calling(transport, uu=refuse) as call:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call("uu")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == text
    assert {*told} <= {*raised.value.trailing_metadata()}


async def test_a_stream_may_end_with_an_error_after_its_messages(transport: str) -> None:
    async def cut(_: bytes, __: Call) -> AsyncIterator[bytes]:
        yield b"one"
        raise RefusedError(Refusal(grpc.StatusCode.DATA_LOSS, "no more"))

    async with calling(transport, us=cut) as call:
        asked = call("us")
        assert await asked.read() == b"one"
        with ends_with(grpc.StatusCode.DATA_LOSS, "no more"):
            await asked.read()


async def test_an_unexpected_error_ends_its_call_alone(transport: str) -> None:
    async def fail(request: bytes, _: Call) -> bytes:
        if request:
            raise RuntimeError("a mistake")
        return b"well"

    async with calling(transport, uu=fail) as call:
        with ends_with(grpc.StatusCode.UNKNOWN, "Unexpected <class 'RuntimeError'>: a mistake"):
            await call("uu", b"x")
        assert await call("uu") == b"well"


async def test_what_nobody_serves_is_unimplemented(transport: str) -> None:
    async with calling(transport, uu=echo) as call:
        with ends_with(grpc.StatusCode.UNIMPLEMENTED) as raised:
            await call("uu_other")
        _check_reason(transport, raised, "UNKNOWN_METHOD")
        assert await call("uu", b"x") == b"x"


async def test_a_message_beyond_the_limit_is_refused_and_the_next_call_is_answered(
    transport: str,
) -> None:
    async with calling(transport, limits={"message_bytes": 1000}, uu=echo, su=joined) as call:
        assert await call("uu", bytes(1000)) == bytes(1000)
        for name, request in (("uu", bytes(1001)), ("su", iter([b"x", bytes(100_000)]))):
            with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED) as raised:
                await call(name, request)
            _check_reason(transport, raised, "TOO_LARGE")
        assert await call("uu", b"x") == b"x"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests_are_read_and_their_limit_counts_them_decompressed(
    transport: str, compression: grpc.Compression
) -> None:
    async with calling(transport, limits={"message_bytes": 300_000}, uu=echo, ss=each) as call:
        text = b"many words " * 20_000
        assert await call("uu", text, compression=compression) == text
        answers = call("ss", iter([text, b"", text]), compression=compression)
        assert [answer async for answer in answers] == [text, b"", text]
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            await call("uu", bytes(10_000_000), compression=compression)
        assert await call("uu", b"x") == b"x"


async def test_a_handler_may_answer_before_it_has_read_all(transport: str) -> None:
    async def first(_: object, context: Call) -> bytes:
        return await context.read() or b""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(10_000)

    async with calling(transport, su=first) as call:
        assert await call("su", endless()) == bytes(10_000)
        assert await call("su", iter([b"again"])) == b"again"


async def test_many_calls_share_a_connection(transport: str) -> None:
    arrived = asyncio.Event()
    count = 0

    async def meet(request: bytes, _: Call) -> bytes:
        nonlocal count
        count += 1
        if count == 100:
            arrived.set()
        await arrived.wait()
        return request

    async with calling(transport, uu=meet) as call:
        messages = [b"%d" % number for number in range(100)]
        assert await asyncio.gather(*(call("uu", message) for message in messages)) == messages


async def test_a_call_names_its_caller(transport: str) -> None:
    async def who(_: bytes, context: Call) -> bytes:
        assert not context.names
        return context.peer.encode()

    async with serving(transport, address="[::1]:0", uu=who) as address, Caller(address) as call:
        assert (await call("uu")).startswith(b"ipv6:%5B::1%5D:")
    async with serving(transport, uu=who) as address, Caller(address) as call:
        assert (await call("uu")).startswith(b"ipv4:127.0.0.1:")


async def test_a_server_listens_at_names_and_at_paths(transport: str, tmp_path: Any) -> None:
    for listen in ("localhost:0", f"unix:{tmp_path}/socket"):
        async with serving(transport, address=listen, uu=echo) as address, Caller(address) as call:
            assert await call("uu", b"x") == b"x"


async def test_an_address_that_is_taken_is_an_error(transport: str) -> None:
    async with serving(transport, uu=echo) as address:
        with pytest.raises(OSError, match=r"."):
            async with serving(transport, address=address, uu=echo):
                pass


def _check_reason(
    transport: str, raised: pytest.ExceptionInfo[grpc.aio.AioRpcError], reason: str
) -> None:
    """Check the reason of a refusal; gRPC's own library gives none for its own refusals."""
    if transport == "nghttp2":
        assert details_of(raised.value).reason == reason
    else:
        assert "grpc-status-details-bin" not in raised.value.trailing_metadata()


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ((b"text", b"with a space "), "with a space "),
        ((b"text", b"\ttab "), "\ttab "),
        ((b"text", b"a,b"), "a,b"),
        ((b"text", "☃".encode()), "☃"),
        ((b"text", b"\xff"), "\xff"),
        ((b"raw-bin", b"AAE"), b"\0\1"),
        ((b"raw-bin", b"AAEC,AAED"), None),
        ((b"raw-bin", b"AAEC "), None),
    ],
)
async def test_headers_of_any_form_are_the_same_metadata_on_both(
    transport: str, header: tuple[bytes, bytes], value: str | bytes | None
) -> None:
    found = []

    async def take(message: bytes, context: Call) -> bytes:
        found.append(dict(context.metadata)[header[0].decode()])
        return message

    server = new_server(transport, methods_of("t.T", uu=take))
    address = await server.start("127.0.0.1:0")
    async with HostileClient(address) as client:
        client.send(raw.headers(1, raw.fields("uu", header)), raw.data(1, raw.message(b""), 1))
        ended = await client.frame(raw.HEADERS, 1, raw.END_STREAM)
        assert ended.headers["grpc-status"] == (b"13" if value is None else b"0")
    await server.stop(0)
    assert found == ([] if value is None else [value])


async def test_a_client_may_ping_while_it_has_no_call(transport: str) -> None:
    async with serving(transport) as address, HostileClient(address) as client:
        for _ in range(8):
            client.send(raw.frame(raw.PING, 0, 0, bytes(8)))
            await client.frame(raw.PING)
            await asyncio.sleep(0.15)  # as a client does that keeps its connection alive
        assert not [one for one in client.frames if one.kind == raw.GOAWAY]


async def test_calls_and_streams_pass_through_envoy(transport: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hold(_: bytes, __: Call) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async def refuse(_: bytes, __: Call) -> bytes:
        raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, "no such thing"))

    messages = [b"", bytes(100_000), b"x"] * 20
    async with serving(transport, uu=echo, ss=each, uu_refuse=refuse, uu_hold=hold) as address:
        envoy = Envoy(http2_proxy(address))
        await asyncio.to_thread(envoy.start)
        try:
            async with Caller(envoy.address) as call:
                assert await asyncio.gather(*(call("uu", one) for one in messages)) == messages
                assert [answer async for answer in call("ss", iter(messages))] == messages
                with ends_with(grpc.StatusCode.NOT_FOUND, "no such thing"):
                    await call("uu_refuse")
                with ends_with(grpc.StatusCode.DEADLINE_EXCEEDED):
                    await call("uu_hold", timeout=0.5)
                await begun.wait()
                await ended.wait()
        finally:
            await asyncio.to_thread(envoy.close)
