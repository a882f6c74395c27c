"""Many connections whose messages wait to be read: together they hold no more than a limit."""

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack, Attacked
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.router.error_details import details_in
from tests.until import until
from warmpath.h2grpc import server as nghttp2_server
from warmpath.h2grpc.server import Server

LIMIT = 1 << 20
FRAME = 16_000
HALF = raw.message(bytes(4 * FRAME))[: 2 * FRAME]
WHOLE = raw.message(bytes(2 * FRAME))


def held(server: Server) -> int:
    return sum(connection.held for connection in server._connections)


class Most:
    """The most bytes that were held at any time when bytes arrived."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        arrived: Callable[[Server, int], None] = Server._arrived

        def counted(server: Server, size: int) -> None:
            arrived(server, size)
            self.bytes = max(self.bytes, held(server) + size)

        monkeypatch.setattr(Server, "_arrived", counted)


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
    attack: Attack,
) -> None:
    monkeypatch.setattr(nghttp2_server, "LATE_SECONDS", late_seconds)
    most = Most(monkeypatch)
    async with attack(received_bytes=LIMIT) as server, AsyncExitStack() as stack:
        connected = await clients(server, stack, 20)
        for stream in raw.streams(20):
            for client in connected:
                send(client, stream, method, HALF)
            await server.answers(10_000)
        # 400 calls tried to hold 12.8 MB.
        assert LIMIT // 4 < most.bytes <= LIMIT
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
    monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    most = Most(monkeypatch)
    async with attack(received_bytes=LIMIT) as server, AsyncExitStack() as stack:
        modest, *greedy = await clients(server, stack, 5)
        send(modest, 1, "Deaf", WHOLE)
        await until(lambda: held(server.server._server) == len(WHOLE))
        for stream in raw.streams(50):
            for client in greedy:
                send(client, stream, "Deaf", WHOLE)
            await server.answers(10_000)
        assert most.bytes <= LIMIT
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
