"""Calls that are reset, never begin, never end, are too many, or are cut off."""

import zlib

import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.router.error_details import details_in
from tests.waiting import until
from warmpath.h2grpc import announced

RESOURCE_EXHAUSTED, INTERNAL = b"8", b"13"
REASONS = {RESOURCE_EXHAUSTED: "TOO_LARGE", INTERNAL: "BAD_CALL"}


async def test_calls_that_are_reset_at_once_are_limited(attack: Attack) -> None:
    async with attack(resets_per_second=5) as server, server.client() as client:
        client.send(*(raw.call(one, "Hold", b"x") + raw.reset(one) for one in raw.streams(10_000)))
        await server.answers()
        await server.ended(client, "5 resets per second")
        # Those that were reset in the same read never ran.
        assert server.service.begun["Hold"] <= 51


@pytest.mark.deep
@pytest.mark.parametrize("code", [2, 8], ids=["INTERNAL_ERROR, as Envoy", "CANCEL"])
async def test_calls_that_are_reset_after_an_answer_are_not_limited(
    code: int, attack: Attack
) -> None:
    async with attack(resets_per_second=1) as server, server.client() as client:
        for stream in raw.streams(200):
            client.send(raw.headers(stream, raw.fields("Each")))
            client.send(raw.data(stream, raw.message(b"x")))
            await client.frame(raw.DATA, stream)
            client.send(raw.reset(stream, code))
        await until(lambda: server.calls == server.tasks == 0)
        await server.answers()
        assert server.attackers


async def test_calls_that_are_reset_later_are_cancelled(attack: Attack) -> None:
    async with attack() as server, server.client() as client:
        for stream in raw.streams(100):
            client.send(raw.call(stream, "Hold", b"x"))
        await until(lambda: server.service.running["Hold"] == 100)
        client.send(*(raw.reset(stream) for stream in raw.streams(100)))
        await until(lambda: server.service.running["Hold"] == server.calls == server.tasks == 0)
        await server.answers()


async def test_calls_that_are_half_open_are_no_more_than_the_limit(attack: Attack) -> None:
    async with attack(streams=20) as server, server.client(acks=False) as client:
        for stream in raw.streams(60):
            client.send(raw.headers(stream, raw.fields("Take")))
        client.send(*(raw.data(stream, raw.message(b"x")) for stream in raw.streams(20)))
        # A client that has not acknowledged the limit is only refused what is beyond it.
        for stream in raw.streams(40, 41):
            refused = await client.frame(raw.RESET, stream)
            assert refused.payload == raw.word(raw.REFUSED)
        assert server.calls == server.tasks == 20
        await server.answers()
        client.send(raw.frame(raw.SETTINGS, raw.ACK, 0, b""))
        client.send(raw.headers(121, raw.fields("Take")))
        await client.until_closed()


@pytest.mark.parametrize("reads", [True, False])
async def test_calls_beyond_the_limit_that_is_never_acknowledged_are_a_flood(
    reads: bool, caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    async with (
        attack(streams=5, control_frames_per_second=50) as server,
        server.client(acks=False, reads=reads) as client,
    ):
        block = raw.fields("Take")
        client.send(*(raw.headers(stream, block) for stream in raw.streams(2000)))
        await until(lambda: not server.attackers)
        assert "50 control frames per second" in caplog.text
        assert server.service.begun["Take"] <= 5


@pytest.mark.parametrize(
    ("what", "status"),
    [
        (b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED),
        (b"\0\0\4\0\1", RESOURCE_EXHAUSTED),
        (b"\0\0\0\0\5abcd", INTERNAL),
        (b"\0\0\0", INTERNAL),
        (b"\2\0\0\0\0", INTERNAL),
        (b"\1\0\0\0\0", INTERNAL),
        (raw.message(b"not gzip", 1), INTERNAL),
        (raw.message(zlib.compress(bytes(1 << 25), 9, 31), 1), RESOURCE_EXHAUSTED),
        (raw.message(zlib.compress(bytes(1000), 9, 31)[:-9], 1), INTERNAL),
        (b"", INTERNAL),
    ],
)
@pytest.mark.parametrize("method", ["Take", "Echo", "Once"])
async def test_a_message_that_cannot_be_read_ends_only_its_call(
    method: str, what: bytes, status: bytes, attack: Attack
) -> None:
    if method == "Take" and not what:
        status = b"0"
    async with attack(message_bytes=1 << 18) as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Hold")))
        client.send(raw.headers(3, raw.fields(method, (b"grpc-encoding", b"gzip"))))
        at = -(-len(what) // 3) or 1
        for start in range(0, len(what), at):
            client.send(raw.data(3, what[start : start + at]))
        client.send(raw.data(3, b"", raw.END_STREAM))
        ended = await client.frame(raw.HEADERS, 3, raw.END_STREAM)
        assert ended.headers["grpc-status"] == status
        if status != b"0":
            assert details_in(ended.headers).reason == REASONS[status]
        await until(lambda: server.calls == 1)
        assert not client.is_closed


async def test_bytes_of_a_call_that_nobody_reads_are_bounded_by_its_window(attack: Attack) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Hold")))
        client.send(raw.data(1, raw.message(b"x")))
        await until(lambda: server.service.running["Hold"])
        client.send(*(raw.data(1, bytes(16_000)) for _ in range(4)))
        client.send(raw.frame(raw.PING, 0, 0, bytes(8)))
        await client.frame(raw.PING)
        assert not [
            one
            for one in client.frames
            if one.kind in {raw.WINDOW_UPDATE, raw.RESET} and one.stream
        ]
        await server.answers()
        client.send(*(raw.data(1, bytes(16_000)) for _ in range(2)))
        found = await client.frame(raw.RESET, 1)
        assert found.payload == raw.word(raw.FLOW_CONTROL_ERROR)
        await until(lambda: not server.service.running["Hold"])


@pytest.mark.parametrize(
    "broken",
    [
        raw.data(5, b"x"),
        raw.data(0, b"x"),
        raw.headers(2, raw.fields("Echo")),
        raw.headers(0, raw.fields("Echo")),
        raw.headers(7, b"\xff\xff\xff\xff\xff\xff"),
        raw.headers(7, raw.indexed(100)),
        raw.window(0, 0),
        raw.window(0, (1 << 31) - 1),
        raw.window(9, 1),
        raw.reset(9),
        raw.reset(0),
        raw.frame(raw.PUSH, raw.END_HEADERS, 1, raw.word(2)),
        raw.frame(raw.CONTINUATION, raw.END_HEADERS, 1, b""),
        raw.headers(7, b"", 0) + raw.frame(raw.PING, 0, 0, bytes(8)),
        raw.headers(7, b"", 0) + raw.frame(raw.CONTINUATION, raw.END_HEADERS, 9, b""),
        raw.frame(raw.PING, 0, 0, b"7 bytes"),
        raw.frame(raw.PING, 0, 1, bytes(8)),
        raw.frame(raw.SETTINGS, 0, 0, b"\0"),
        raw.frame(raw.SETTINGS, 0, 0, b"\0\4\x80\0\0\0"),
        raw.frame(raw.SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
        raw.frame(raw.SETTINGS, 0, 1, b""),
        raw.frame(raw.SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 100),
        raw.frame(raw.SETTINGS, raw.ACK, 0, b"") * 2,
        raw.frame(raw.GOAWAY, 0, 0, b""),
        raw.frame(raw.DATA, raw.PADDED, 1, b"\xff"),
        raw.frame(raw.DATA, raw.PADDED, 1, b""),
        raw.frame(raw.HEADERS, raw.PADDED | raw.END_HEADERS, 7, b"\xff" + raw.fields("Echo")),
        raw.frame(raw.HEADERS, raw.PRIORITIZED | raw.END_HEADERS, 7, raw.word(7) + b"\0" + raw.fields("Echo")),
        (1 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\1" + bytes(1000),
        b"\xff\xff\xff" + b"\x77\0\0\0\0\0",
    ],
    ids=lambda raw: raw[:20].hex(),
)  # fmt: skip
async def test_frames_that_break_the_protocol_end_the_connection_and_its_calls(
    broken: bytes, attack: Attack
) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Take")), raw.data(1, raw.message(b"x")))
        client.send(raw.call(3, "Hold", b"x"))
        await until(lambda: server.service.running["Hold"] == server.service.running["Take"] == 1)
        client.send(broken, raw.data(1, b"") * 10)
        await client.until_closed()
        await until(lambda: not server.attackers)


async def test_padding_does_not_reach_the_messages(attack: Attack) -> None:
    async with attack() as server, server.client() as client:
        block = b"\5" + raw.fields("Echo") + bytes(5)
        client.send(raw.frame(raw.HEADERS, raw.PADDED | raw.END_HEADERS, 1, block))
        for part in (b"\0\0", b"\0\0\2a", b"b"):
            client.send(raw.data(1, b"\x07" + part + bytes(7), raw.PADDED))
        client.send(raw.data(1, b"\0", raw.PADDED | raw.END_STREAM))
        assert (await client.frame(raw.DATA, 1)).payload == raw.message(b"ab")


@pytest.mark.parametrize(
    "phase", ["headers", "message", "read", "answering", "answered", "nothing"]
)
@pytest.mark.parametrize("how", ["close", "abort", "goaway"])
async def test_a_connection_that_is_lost_in_any_phase_leaves_nothing(
    phase: str, how: str, attack: Attack
) -> None:
    async with attack() as server, server.client() as client:
        running = server.service.running
        if phase == "headers":
            client.send(raw.headers(1, raw.fields("Echo"), 0))
        elif phase == "message":
            client.send(raw.headers(1, raw.fields("Take")), raw.data(1, b"\0\0\2\0\0half"))
            await until(lambda: running["Take"])
        elif phase == "read":
            client.send(raw.call(1, "Hold", b"x"))
            await until(lambda: running["Hold"])
        elif phase == "answering":
            client.send(raw.call(1, "Many", b"100 100000"))
            await client.frame(raw.DATA, 1)
        elif phase == "answered":
            client.send(raw.call(1, "Large", b"200000"))
            await client.frame(raw.DATA, 1)
        if how == "goaway":
            client.send(raw.frame(raw.GOAWAY, 0, 0, bytes(8)))
            client.writer.write_eof()
        elif how == "close":
            client.writer.close()
        else:
            client.writer.transport.abort()
        await until(lambda: not server.attackers and not running.total())


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
        assert ended.headers["grpc-status"] == RESOURCE_EXHAUSTED
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
