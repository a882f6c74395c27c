"""Headers that are too long, inflate, are malformed, or never end."""

import asyncio

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.router.error_details import details_in
from tests.router.http2_client import frame
from tests.until import until

MOST = 4096
LARGE = raw.literal(b"k", b"v" * 3000, keep=True)


async def _is_served(client: HostileClient, stream: int) -> None:
    """Check that a client's connection goes on."""
    client.send(raw.call(stream, "Echo", b"x"))
    ended = await client.frame(raw.HEADERS, stream, raw.END_STREAM)
    assert ended.headers["grpc-status"] == b"0"


@pytest.mark.parametrize(
    "block",
    [
        raw.literal(b"k", b"v" * MOST),
        raw.literal(b"k" * MOST, b""),
        LARGE + raw.indexed(62),
        raw.literal(b"k", b"") * (MOST // 33 + 1),
    ],
    ids=["value", "name", "index", "many"],
)
async def test_a_call_with_too_long_headers_gets_a_status(block: bytes, attack: Attack) -> None:
    async with attack(header_bytes=MOST) as server, server.client() as client:
        for stream in raw.streams(3):
            client.send(raw.headers(stream, raw.fields("Echo") + block))
            ended = await client.frame(raw.HEADERS, stream, raw.END_STREAM)
            assert ended.headers["grpc-status"] == b"8"
            assert f"{MOST} bytes".encode() in ended.headers["grpc-message"]
            assert details_in(ended.headers).reason == "TOO_LARGE"
        await _is_served(client, 7)
        assert server.service.begun["Echo"] == 2


async def test_headers_that_inflate_reset_their_call(attack: Attack) -> None:
    async with attack(header_bytes=MOST) as server, server.client() as client:
        # 8 frames of 16,000 references to a value of 3,000 bytes: 384 MB.
        bomb = raw.fields("Echo") + LARGE + raw.indexed(62) * 8000
        more = raw.indexed(62) * 16_000
        client.send(raw.headers(1, bomb, 0))
        client.send(*(frame(raw.CONTINUATION, 0, 1, more) for _ in range(6)))
        client.send(frame(raw.CONTINUATION, raw.END_HEADERS, 1, more))
        await client.frame(raw.RESET, 1)
        attacker = await server.attacker()
        assert attacker.session._unended is None
        await _is_served(client, 3)


@pytest.mark.parametrize("payload", [b"", raw.literal(b"k", b"v"), bytes(2)])
async def test_continuations_without_end_end_the_connection(payload: bytes, attack: Attack) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Echo"), 0))
        flooding = asyncio.create_task(
            client.flood(frame(raw.CONTINUATION, 0, 1, payload) * 100, 1000)
        )
        await server.answers()
        await client.until_closed()
        await flooding


@pytest.mark.parametrize(
    "begun",
    [
        raw.headers(1, raw.fields("Echo"), 0),
        raw.headers(1, raw.fields("Echo"), 0) + frame(raw.CONTINUATION, 0, 1, b""),
        raw.headers(1, raw.fields("Echo"))[:-1],
        raw.headers(1, raw.fields("Echo"))[:10],
    ],
)
async def test_headers_that_do_not_end_in_time_end_the_connection(
    begun: bytes, attack: Attack
) -> None:
    async with attack(handshake_seconds=10) as server, server.client() as client:
        attacker = await server.attacker()
        client.send(begun)
        await until(lambda: attacker.session.headers_since is not None)
        await server.pass_time(9)
        await server.answers()
        assert not client.is_closed
        await server.pass_time(2)
        await server.ended(client, "headers did not end within 10 s")


@pytest.mark.parametrize(
    "block",
    [
        raw.fields("Echo", (b"UPPER", b"x")),
        raw.fields("Echo", (b"connection", b"x")),
        raw.fields("Echo", (b":path", b"/again")),
        raw.fields("Echo", (b"a b", b"x")),
        raw.fields("Echo", (b"", b"x")),
        raw.literal(b":path", b"/t.T/Echo"),
        b"",
    ],
)
async def test_malformed_headers_cost_their_call_and_not_the_connection(
    block: bytes, attack: Attack
) -> None:
    async with attack(handshake_seconds=10, ping_seconds=1000) as server, server.client() as client:
        attacker = await server.attacker()
        client.send(raw.headers(1, block))
        await client.frame(raw.RESET, 1)
        assert attacker.session.headers_since is None
        await server.pass_time(30)
        await server.answers()
        await _is_served(client, 3)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ((b"grpc-timeout", b"1"), b"13"),
        ((b"grpc-timeout", b"999999999S"), b"13"),
        ((b"grpc-timeout", b"-1S"), b"13"),
        ((b"grpc-timeout", b"0n"), b"4"),
        ((b"grpc-timeout", b"99999999H"), b"0"),
        ((b"x-bin", b"*"), b"13"),
        ((b"x-bin", b"a"), b"13"),
        ((b"x", b"\xff\xfe"), b"0"),
        ((b"grpc-encoding", b"\xff"), b"0"),
        ((b"content-length", b"6"), b"0"),
        ((b"grpc-status", b"0"), b"0"),
    ],
)
async def test_headers_of_any_content_are_answered(
    header: tuple[bytes, bytes], status: bytes, attack: Attack
) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Echo", header)))
        if status != b"4":
            client.send(raw.data(1, raw.message(b"x"), raw.END_STREAM))
        ended = await client.frame(raw.HEADERS, 1, raw.END_STREAM)
        assert ended.headers["grpc-status"] == status
        await _is_served(client, 3)


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (raw.fields("Echo").replace(b"POST", b"LOCK"), b"405"),
        (raw.fields("Echo").replace(b"n/grpc", b"n/json"), b"415"),
        (raw.fields("Echo").replace(b"n/grpc", b"n/grpx"), b"415"),
    ],
)
async def test_requests_that_are_no_calls_get_a_status_of_http(
    block: bytes, status: bytes, attack: Attack
) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, block))
        ended = await client.frame(raw.HEADERS, 1, raw.END_STREAM)
        assert ended.headers[":status"] == status
        await _is_served(client, 3)
