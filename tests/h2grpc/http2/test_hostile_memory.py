"""Bytes that wait to be read, in both directions: together they are no more than a limit."""

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack, Attacked
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.router.error_details import details_in
from tests.waiting import until
from warmpath.h2grpc import server as nghttp2_server
from warmpath.h2grpc.server import Server

LIMIT = 1 << 20
FRAME = 16_000
HALF = raw.message(bytes(4 * FRAME))[: 2 * FRAME]
WHOLE = raw.message(bytes(2 * FRAME))


def held(server: Server) -> int:
    return sum(connection.held for connection in server._connections)


@pytest.fixture
def held_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the bytes that were held whenever bytes arrived."""
    found: list[int] = []
    arrived: Callable[[Server, int], None] = Server._arrived

    def counted(server: Server, size: int) -> None:
        arrived(server, size)
        found.append(held(server) + size)

    monkeypatch.setattr(Server, "_arrived", counted)
    return found


def send(client: HostileClient, stream: int, method: str, message: bytes) -> None:
    client.send(
        raw.headers(stream, raw.fields(method)),
        *(raw.data(stream, message[at : at + FRAME]) for at in range(0, len(message), FRAME)),
    )


async def clients(server: Attacked, stack: AsyncExitStack, count: int) -> list[HostileClient]:
    return [await stack.enter_async_context(server.client()) for _ in range(count)]


def told(client: HostileClient, stream: int) -> dict[str, bytes]:
    found = (one.headers for one in client.frames if one.stream == stream and one.headers)
    return next(found, {})


@pytest.mark.parametrize("late_seconds", [0.0, 1000.0])
@pytest.mark.parametrize("method", ["Echo", "Once", "Take", "Deaf"])
async def test_connections_that_each_hold_half_a_message_hold_no_more_than_the_limit(
    method: str,
    late_seconds: float,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    held_bytes: list[int],
    attack: Attack,
) -> None:
    monkeypatch.setattr(nghttp2_server, "LATE_SECONDS", late_seconds)
    async with attack(received_bytes=LIMIT) as server, AsyncExitStack() as stack:
        connected = await clients(server, stack, 20)
        for stream in raw.streams(20):
            for client in connected:
                send(client, stream, method, HALF)
            await server.answers(10_000)
        # 400 calls tried to hold 12.8 MB.
        assert LIMIT // 4 < max(held_bytes) <= LIMIT
        headers = next(one.headers for client in connected for one in client.frames if one.headers)
        # Where calls count as late at once, the first one gives way first.
        assert late_seconds or told(connected[0], 1)
        assert headers["grpc-status"] == b"8"
        reason = details_in(headers)
        assert reason.reason == "OVERLOADED"
        assert reason.metadata == {"limit": "received-bytes"}
        await until(lambda: server.tasks * len(HALF) <= LIMIT)
        assert held(server.server._server) <= LIMIT
    assert "calls ended: the calls of all clients hold 1048576 bytes" in caplog.text


async def test_whole_messages_that_nobody_reads_go_where_a_connection_has_the_most(
    held_bytes: list[int], attack: Attack
) -> None:
    async with attack(received_bytes=LIMIT) as server, AsyncExitStack() as stack:
        modest, *greedy = await clients(server, stack, 5)
        send(modest, 1, "Deaf", WHOLE)
        await until(lambda: held(server.server._server) == len(WHOLE))
        for stream in raw.streams(50):
            for client in greedy:
                send(client, stream, "Deaf", WHOLE)
            await server.answers(10_000)
        assert max(held_bytes) <= LIMIT
        assert all(any(one.headers for one in client.frames) for client in greedy)
        assert not any(one.headers for one in modest.frames)


@pytest.mark.deep
async def test_messages_that_are_read_as_they_come_never_count_for_long(
    caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    async with attack(received_bytes=LIMIT) as server, server.client() as client:
        for stream in raw.streams(100):
            send(client, stream, "Take", WHOLE)
            client.send(raw.data(stream, b"", raw.END_STREAM))
            assert (await client.frame(raw.DATA, stream)).payload
            await server.answers(500_000)
        assert "calls ended" not in caplog.text


@pytest.mark.parametrize("width", [0, 1, 5])
async def test_answers_that_are_not_let_through_are_bounded(width: int, attack: Attack) -> None:
    size = 20_000
    async with (
        attack(unsent_bytes=10 * size + 1000, stall_seconds=30, ping_seconds=1000) as server,
        server.client(preface=raw.PREFACE + raw.settings(window=width)) as client,
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
        server.client(preface=raw.PREFACE + raw.settings(window=105)) as client,
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
        server.client(preface=raw.PREFACE + raw.settings(window=0)) as client,
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
        server.client(preface=raw.PREFACE + raw.settings(window=0)) as client,
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
        server.client(reads=False, preface=raw.PREFACE + raw.settings(window=most - 1)) as client,
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
        server.client(reads=False, preface=raw.PREFACE + raw.settings(window=most - 1)) as client,
    ):
        client.send(raw.window(0, most - 1 - 65_535))
        attacker = await server.attacker()
        client.send(raw.call(1, "Many", b"1000 1000000"))
        await until(lambda: attacker._paused_since is not None)
        await client.flood(raw.settings() * 1000 + b"", 100)
        await until(lambda: not server.attackers)
        await server.answers()
