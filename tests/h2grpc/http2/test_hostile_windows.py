"""Clients that do not let the server send, or do not read what it sends."""

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.h2grpc.http2.hostile_client import PREFACE
from tests.router.error_details import details_in
from tests.until import until


@pytest.mark.parametrize("width", [0, 1, 5])
async def test_answers_that_are_not_let_through_are_bounded(width: int, attack: Attack) -> None:
    size = 20_000
    async with (
        attack(unsent_bytes=10 * size + 1000, stall_seconds=30, ping_seconds=1000) as server,
        server.client(preface=PREFACE + raw.settings(window=width)) as client,
    ):
        for stream in raw.streams(100):
            client.send(raw.call(stream, "Large", b"%d" % size))
            # Calls after those that filled it are refused.
            begun = await client.frame(raw.HEADERS, stream)
            if stream > 2 * 11:
                assert details_in(begun.headers).reason == "ANSWERS_UNREAD"
        assert server.service.begun["Large"] == 11
        assert server.unsent == 11 * (size + 5 - width)
        await server.answers()
        await server.pass_time(29)
        await server.answers()
        assert server.calls == 11
        await server.pass_time(31)
        await until(lambda: not server.calls and not server.unsent)
        for stream in raw.streams(11):
            await client.frame(raw.RESET, stream)
        # The connection itself goes on.
        client.send(raw.call(201, "Echo", b""), raw.window(201, 5))
        ended = await client.frame(raw.HEADERS, 201, raw.END_STREAM)
        assert ended.headers["grpc-status"] == b"0"


async def test_an_answer_whose_end_is_not_let_through_is_reset(attack: Attack) -> None:
    async with (
        attack(stall_seconds=30, ping_seconds=1000) as server,
        server.client(preface=PREFACE + raw.settings(window=105)) as client,
    ):
        # The only message fills the window, and no byte of it waits.
        client.send(raw.call(1, "Many", b"1 100"))
        await client.frame(raw.DATA, 1)
        attacker = await server.attacker()
        await until(lambda: all(one.is_ended for one in attacker.calls._of.values()))
        await server.pass_time(29)
        await server.answers()
        await server.pass_time(31)
        await until(lambda: not server.calls)


async def test_an_answer_that_is_read_slowly_is_not_reset(attack: Attack) -> None:
    async with (
        attack(stall_seconds=30, ping_seconds=1000) as server,
        server.client(preface=PREFACE + raw.settings(window=0)) as client,
    ):
        client.send(raw.call(1, "Large", b"100"))
        await until(lambda: server.unsent == 105)
        for _ in range(10):
            client.send(raw.window(1, 10))
            await client.frame(raw.DATA, 1)
            await server.pass_time(20)
        client.send(raw.window(1, 10))
        await client.frame(raw.HEADERS, 1, raw.END_STREAM)


async def test_writes_of_a_stream_wait_for_the_client(attack: Attack) -> None:
    async with (
        attack() as server,
        server.client(preface=PREFACE + raw.settings(window=0)) as client,
    ):
        for stream in raw.streams(50):
            client.send(raw.call(stream, "Many", b"1000000 1000"))
        await until(lambda: server.unsent == 50 * 1005)
        await server.answers()
        assert server.unsent == 50 * 1005
        client.send(*(raw.reset(stream) for stream in raw.streams(50)))
        await until(lambda: not server.calls and not server.tasks and not server.unsent)


async def test_a_client_that_does_not_read_its_socket_is_cut_off(
    caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    most = 1 << 31
    async with (
        attack(stall_seconds=20, ping_seconds=1000, unsent_bytes=1 << 20) as server,
        server.client(reads=False, preface=PREFACE + raw.settings(window=most - 1)) as client,
    ):
        client.send(raw.window(0, most - 1 - 65_535))
        attacker = await server.attacker()
        for stream in raw.streams(200):
            client.send(raw.call(stream, "Large", b"500000"))
        await until(lambda: attacker._paused_since is not None)
        await until(lambda: server.service.begun["Large"] and not server.service.running["Large"])
        assert server.buffered < (2 << 20)
        assert server.unsent <= (1 << 20) + 500_005 * 256
        await server.answers()
        client.send(*(raw.call(stream, "Large", b"500000") for stream in raw.streams(20, 401)))
        client.send(raw.call(441, "Hold", b"x"))
        await server.answers()
        assert not server.service.running["Hold"]
        await server.pass_time(19)
        await server.answers()
        assert server.attackers
        await server.pass_time(2)
        await until(lambda: not server.attackers)
        assert "nothing was read for 20 s" in caplog.text


async def test_acknowledgements_that_are_not_read_are_bounded(attack: Attack) -> None:
    most = 1 << 31
    async with (
        attack(control_frames_per_second=10**6) as server,
        server.client(reads=False, preface=PREFACE + raw.settings(window=most - 1)) as client,
    ):
        client.send(raw.window(0, most - 1 - 65_535))
        attacker = await server.attacker()
        client.send(raw.call(1, "Many", b"1000 1000000"))
        await until(lambda: attacker._paused_since is not None)
        await client.flood(raw.settings() * 1000 + b"", 100)
        await until(lambda: not server.attackers)
        await server.answers()
