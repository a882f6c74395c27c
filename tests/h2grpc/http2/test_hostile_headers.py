"""Headers that are too long, inflate, are malformed, or never end; and floods of any frames."""

import asyncio
from collections.abc import Callable

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.router.error_details import details_in
from tests.waiting import until

MOST = 4096
LARGE = raw.literal(b"k", b"v" * 3000, keep=True)


async def _is_served(client: HostileClient, stream: int) -> None:
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
        client.send(*(raw.frame(raw.CONTINUATION, 0, 1, more) for _ in range(6)))
        client.send(raw.frame(raw.CONTINUATION, raw.END_HEADERS, 1, more))
        await client.frame(raw.RESET, 1)
        attacker = await server.attacker()
        assert attacker.session._unended is None
        await _is_served(client, 3)


@pytest.mark.parametrize("payload", [b"", raw.literal(b"k", b"v"), bytes(2)])
async def test_continuations_without_end_end_the_connection(payload: bytes, attack: Attack) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Echo"), 0))
        flooding = asyncio.create_task(
            client.flood(raw.frame(raw.CONTINUATION, 0, 1, payload) * 100, 1000)
        )
        await server.answers()
        await client.until_closed()
        await flooding


@pytest.mark.parametrize(
    "begun",
    [
        raw.headers(1, raw.fields("Echo"), 0),
        raw.headers(1, raw.fields("Echo"), 0) + raw.frame(raw.CONTINUATION, 0, 1, b""),
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


ECHO = raw.fields("Echo")


@pytest.mark.parametrize(
    ("block", "ended", "reason"),
    [
        (ECHO + raw.literal(b"grpc-timeout", b"1"), b"13", "BAD_CALL"),
        (ECHO + raw.literal(b"grpc-timeout", b"soon"), b"13", "BAD_CALL"),
        (ECHO + raw.literal(b"grpc-timeout", b"999999999S"), b"13", "BAD_CALL"),
        (ECHO + raw.literal(b"grpc-timeout", b"-1S"), b"13", "BAD_CALL"),
        (ECHO + raw.literal(b"grpc-timeout", b"0n"), b"4", ""),
        (ECHO + raw.literal(b"grpc-timeout", b"99999999H"), b"0", ""),
        (ECHO + raw.literal(b"x-bin", b"*"), b"13", "BAD_CALL"),
        (ECHO + raw.literal(b"x-bin", b"a"), b"13", "BAD_CALL"),
        (ECHO + raw.literal(b"x", b"\xff\xfe"), b"0", ""),
        (ECHO + raw.literal(b"grpc-encoding", b"\xff"), b"0", ""),
        (ECHO + raw.literal(b"grpc-encoding", b"br"), b"12", "UNKNOWN_ENCODING"),
        (ECHO + raw.literal(b"content-length", b"6"), b"0", ""),
        (ECHO + raw.literal(b"grpc-status", b"0"), b"0", ""),
        (ECHO.replace(b"POST", b"LOCK"), b"405", ""),
        (ECHO.replace(b"n/grpc", b"n/json"), b"415", ""),
        (ECHO.replace(b"n/grpc", b"n/grpx"), b"415", ""),
    ],
)
async def test_headers_of_any_content_are_answered(
    block: bytes, ended: bytes, reason: str, attack: Attack
) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, block))
        if ended not in {b"4", b"405", b"415"}:
            is_packed = reason == "UNKNOWN_ENCODING"
            client.send(raw.data(1, raw.message(b"x", is_packed), raw.END_STREAM))
        found = (await client.frame(raw.HEADERS, 1, raw.END_STREAM)).headers
        assert found["grpc-status" if len(ended) < 3 else ":status"] == ended
        if reason:
            assert details_in(found).reason == reason
        await _is_served(client, 3)


BURST = 50
"""Frames that 5 a second allow at once."""

LIMITS = r"5 control frames per second|resets per second|Flooding was detected"

FLOODS: dict[str, bytes] = {
    "ping": raw.frame(raw.PING, 0, 0, bytes(8)),
    "answers to pings that were never sent": raw.frame(raw.PING, raw.ACK, 0, bytes(8)),
    "settings": raw.settings(window=1),
    "settings of the header table": raw.settings(table=0),
    "priority": raw.frame(raw.PRIORITY, 0, 1, raw.word(3) + b"\1"),
    "priority of idle streams": raw.frame(raw.PRIORITY, 0, 2001, raw.word(3) + b"\1"),
    "empty data": raw.data(1, b""),
    "padding": raw.data(1, b"\xff" + bytes(255), raw.PADDED),
    "window of the connection": raw.window(0, 1),
    "window of a call": raw.window(1, 1),
    "unknown frames": raw.frame(0x77, 0, 0, b""),
    "unknown frames of a call": raw.frame(0xFF, 0xFF, 1, bytes(100)),
    "data of a call that is over": raw.data(3, bytes(1)),
    "headers of a call that is over": raw.headers(3, raw.fields("Echo")),
    "resets of a call that is over": raw.reset(3),
    "goaway": raw.frame(raw.GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_connection_and_another_client_is_served(
    name: str, attack: Attack
) -> None:
    async with attack(control_frames_per_second=5) as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Take")), raw.call(3, "Echo", b"x"))
        client.send(raw.settings())
        await client.frame(raw.HEADERS, 3, raw.END_STREAM)
        flooding = asyncio.create_task(client.flood(FLOODS[name] * 1000, 1000))
        await server.answers()
        # Floods that want acknowledgements may reach libnghttp2's own limit before, in one read.
        await server.ended(client, LIMITS)
        await flooding


RESET_BY_THE_SERVER: dict[str, Callable[[int], bytes]] = {
    "too wide": lambda stream: raw.headers(stream, raw.fields("Take")) + raw.window(stream, (1 << 31) - 1),
    "bad name": lambda stream: raw.headers(stream, raw.fields("Take", (b"UPPER", b"x"))),
    "no path": lambda stream: raw.headers(stream, raw.literal(b":method", b"POST")),
    "wrong length": lambda stream: raw.headers(stream, raw.fields("Take", (b"content-length", b"7")))
    + raw.data(stream, b"x", raw.END_STREAM),
    "headers beyond": lambda stream: raw.headers(
        stream, raw.fields("Take") + raw.literal(b"k", b"v" * 4000, keep=True) + raw.indexed(62) * 20
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RESET_BY_THE_SERVER)
async def test_calls_that_make_the_server_reset_them_are_limited(kind: str, attack: Attack) -> None:
    async with attack(resets_per_second=5) as server, server.client() as client:
        for stream in raw.streams(10 * BURST):
            # Each is over before the next one begins, so that the most streams do not matter.
            client.send(RESET_BY_THE_SERVER[kind](stream), raw.frame(raw.PING, 0, 0, bytes(8)))
            try:
                await client.frame(raw.PING)
            except EOFError:
                break
        await server.answers()
        await server.ended(client, "5 resets per second")
        assert len([one for one in client.frames if one.kind == raw.RESET]) <= BURST + 1
        await until(lambda: server.service.running["Take"] == 0)


async def test_frames_of_honest_proportions_are_not_limited(attack: Attack) -> None:
    async with attack(control_frames_per_second=1) as server, server.client() as client:
        for stream in raw.streams(40):
            client.send(raw.headers(stream, raw.fields("Large")))
            client.send(
                raw.data(stream, raw.message(b"70000")), raw.data(stream, b"", raw.END_STREAM)
            )
            got = 0
            while got < 70_005:
                # A client answers what it reads, frame by frame.
                part = len((await client.frame(raw.DATA, stream)).payload)
                got += part
                client.send(raw.window(stream, part), raw.window(0, part))
            await client.frame(raw.HEADERS, stream, raw.END_STREAM)
        await server.answers()
