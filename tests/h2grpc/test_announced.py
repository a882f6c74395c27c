"""Calls that have sent their headers alone run no handler, cost no other address, and end in time."""

import grpc
import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.until import until
from warmpath.h2grpc import announced

METHODS = ["Echo", "Once", "Many", "Take", "Deaf", "Each"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("came", [b"", b"\0", raw.message(b"half of it")[:-2]])
async def test_a_call_without_its_whole_message_runs_no_handler_and_ends(
    method: str, came: bytes, attack: Attack
) -> None:
    async with attack(message_seconds=10) as server, server.client() as client:
        begun = server.service.begun[method]
        client.send(raw.headers(1, raw.fields(method)))
        if came:
            client.send(raw.data(1, came))
        await until(lambda: server.calls == 1)
        await server.pass_time(9)
        assert server.calls == 1
        await server.pass_time(2)
        ended = await client.frame(raw.HEADERS, 1, raw.END_STREAM)
        assert ended.headers["grpc-status"] == b"%d" % grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert b"no message came within 10 s" in ended.headers["grpc-message"]
        assert server.service.begun[method] == begun
        # Later calls of the connection are answered.
        client.send(raw.call(3, "Echo", b"x"))
        assert (await client.frame(raw.DATA, 3)).payload == raw.message(b"x")


async def test_a_stream_whose_first_message_has_come_may_wait_for_the_next(attack: Attack) -> None:
    async with attack(message_seconds=10) as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Each")), raw.data(1, raw.message(b"x")))
        await client.frame(raw.DATA, 1)
        await server.pass_time(100)
        client.send(raw.data(1, raw.message(b"later")))
        while (await client.frame(raw.DATA, 1)).payload != raw.message(b"later"):
            pass


@pytest.mark.parametrize("method", METHODS)
async def test_beyond_the_most_calls_the_oldest_of_the_address_with_the_most_ends(
    method: str, monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    monkeypatch.setattr(announced, "MOST", 20)
    async with (
        attack() as server,
        server.client() as greedy,
        server.client(source="127.0.0.2") as modest,
    ):
        modest.send(raw.headers(1, raw.fields(method)))
        await until(lambda: server.calls == 1)
        greedy.send(*(raw.headers(stream, raw.fields(method)) for stream in raw.streams(50)))
        for stream in raw.streams(31):
            ended = await greedy.frame(raw.HEADERS, stream, raw.END_STREAM)
            assert b"most of them come from this address" in ended.headers["grpc-message"]
        await server.answers()
        modest.send(raw.data(1, raw.message(b"3 3"), raw.END_STREAM))
        if method != "Deaf":
            ended = await modest.frame(raw.HEADERS, 1, raw.END_STREAM)
            assert ended.headers["grpc-status"] == b"0"
