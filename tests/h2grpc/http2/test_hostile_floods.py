"""Floods of frames: each ends its own connection, and no other one."""

import asyncio
from collections.abc import Callable

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.router.http2_client import frame
from tests.until import until

BURST = 50
"""Frames that 5 a second allow at once."""

LIMITS = r"5 control frames per second|resets per second|Flooding was detected"

FLOODS: dict[str, bytes] = {
    "ping": frame(raw.PING, 0, 0, bytes(8)),
    "answers to pings that were never sent": frame(raw.PING, raw.ACK, 0, bytes(8)),
    "settings": raw.settings(window=1),
    "settings of the header table": raw.settings(table=0),
    "priority": frame(raw.PRIORITY, 0, 1, raw.word(3) + b"\1"),
    "priority of idle streams": frame(raw.PRIORITY, 0, 2001, raw.word(3) + b"\1"),
    "empty data": raw.data(1, b""),
    "padding": raw.data(1, b"\xff" + bytes(255), raw.PADDED),
    "window of the connection": raw.window(0, 1),
    "window of a call": raw.window(1, 1),
    "unknown frames": frame(0x77, 0, 0, b""),
    "unknown frames of a call": frame(0xFF, 0xFF, 1, bytes(100)),
    "data of a call that is over": raw.data(3, bytes(1)),
    "headers of a call that is over": raw.headers(3, raw.fields("Echo")),
    "resets of a call that is over": raw.reset(3),
    "goaway": frame(raw.GOAWAY, 0, 0, bytes(8)),
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


def _too_wide(stream: int) -> bytes:
    return raw.headers(stream, raw.fields("Take")) + raw.window(stream, (1 << 31) - 1)


def _bad_name(stream: int) -> bytes:
    return raw.headers(stream, raw.fields("Take", (b"UPPER", b"x")))


def _no_path(stream: int) -> bytes:
    return raw.headers(stream, raw.literal(b":method", b"POST"))


def _wrong_length(stream: int) -> bytes:
    more = (b"content-length", b"7")
    return raw.headers(stream, raw.fields("Take", more)) + raw.data(stream, b"x", raw.END_STREAM)


def _headers_beyond(stream: int) -> bytes:
    block = raw.literal(b"k", bytes(b"v" * 4000), keep=True) + raw.indexed(62) * 20
    return raw.headers(stream, raw.fields("Take") + block)


@pytest.mark.parametrize("one", [_too_wide, _bad_name, _no_path, _wrong_length, _headers_beyond])
async def test_calls_that_make_the_server_reset_them_are_limited(
    one: Callable[[int], bytes], attack: Attack
) -> None:
    async with attack(resets_per_second=5) as server, server.client() as client:
        for stream in raw.streams(10 * BURST):
            # Each is over before the next one begins, so that the most streams do not matter.
            client.send(one(stream), frame(raw.PING, 0, 0, bytes(8)))
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
