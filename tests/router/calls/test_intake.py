"""Messages of calls and of streams are read when there is room, and callers that send none keep nobody out."""

import asyncio
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.h2grpc.http2.hostile_client import Http2Client
from tests.router.consistent import check
from tests.router.pick_calls import Codes
from tests.router.pick_stand import QUIET, Stand, pod, prompt, standing
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.assemble import calls
from warmpath.router.calls import server
from warmpath.router.calls.intake import Intake
from warmpath.router.calls.score import Scored
from warmpath.router.calls.service import STREAM_WIDTH, RouterService
from warmpath.router.ending import Drain
from warmpath.router.transport.grpcio import GrpcioServer

TIGHT = "[limits]\nmax-prompt-bytes = 1048576\nmax-prompt-tokens = 100000\n"
ROOM = TIGHT + "max-in-flight-bytes = 16777216\n"


async def test_calls_that_never_send_a_message_keep_nobody_out(tmp_path: Path) -> None:
    async with (
        standing(tmp_path, QUIET + ROOM + pod("a")) as stand,
        Http2Client(stand.address) as attacker,
    ):
        for _ in range(300):
            attacker.begin("Score")
        for _ in range(20):
            await _score(stand)


async def test_more_messages_than_there_is_room_for_are_all_answered(tmp_path: Path) -> None:
    async with standing(tmp_path, QUIET + ROOM + pod("a")) as stand:
        await asyncio.gather(*(_score(stand) for _ in range(100)))


async def test_a_late_message_ends_with_a_clear_text_where_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = QUIET + TIGHT + "max-in-flight-bytes = 1000\n" + pod("a")
    for part in (calls, server):
        monkeypatch.setattr(part, "MESSAGE_SECONDS", 0.2)
    async with (
        standing(tmp_path, tables) as stand,
        Http2Client(stand.address) as attacker,
        grpc.aio.insecure_channel(stand.address) as channel,
    ):
        call = channel.stream_unary("/warmpath.v1.Router/Pick")()
        await call.wait_for_connection()
        # Several: whichever call comes first, another waits.
        for _ in range(20):
            attacker.begin("Pick")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert re.search(r"message (did not come|came) within 0\.2 s", refused.value.details() or "")


class Message(bytes):
    """Records when it is freed."""

    alive = 0

    def __init__(self, *_: object) -> None:
        Message.alive += 1

    def __del__(self) -> None:
        Message.alive -= 1


async def test_a_refused_call_leaves_nothing_for_the_collector_of_cycles() -> None:
    refused = 0

    async def handle(message: bytes, _: object) -> None:
        copy = Message(message)
        try:
            int(copy)
        except ValueError as error:
            raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, "no")) from error

    in_flight = InFlight(100, 10, seconds=1.0, clock=lambda: 0.0)
    intake = Intake(in_flight, in_flight, Codes(), seconds=1.0)
    server = GrpcioServer({"/it/Ask": intake.method("Ask", handle)}, Http2Limits())
    address = await server.start("127.0.0.1:0")
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary("/it/Ask")(b"x")
                refused += 1
            while Message.alive or in_flight.bytes:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        await server.stop(0)
    assert refused == 3


async def _score(stand: Stand) -> None:
    await stand.stub.Score(pb.ScoreRequest(prompt=prompt()), timeout=30)


SIZE = 1000


class Silent:
    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        pass

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        pass


class Slow:
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go_on = asyncio.Event()

    def waits(self, request: wire.ScoreRequest, plain: object) -> bool:
        del plain
        return request.strategy != "at once"

    def score_at_once(self, request: wire.ScoreRequest, plain: object) -> None:
        """Answer nothing at once."""

    async def score(
        self, request: wire.ScoreRequest, timeout: float, plain: object = None
    ) -> Scored:
        del timeout
        self.asked.append(request.request_id)
        if self.waits(request, plain):
            await self.go_on.wait()
        return Scored(b"", 0, 0)


class Stream:
    """A caller of ScoreStream, one connection with the messages given."""

    next_bytes = None

    def __init__(self, peer: str, messages: list[bytes], *, is_idle: bool = False) -> None:
        self.peer = peer
        self._messages = messages
        self._is_idle = is_idle
        """Whether it stays open when it has sent all."""
        self.reads = 0
        self.replies: list[pb.ScoreStreamResponse] = []

    async def read(self) -> bytes | None:
        self.reads += 1
        if self._messages:
            return self._messages.pop(0)
        if self._is_idle:
            await asyncio.Event().wait()
        return None

    async def write(self, message: bytes) -> None:
        self.replies.append(pb.ScoreStreamResponse.FromString(message))


class Router:
    """A service with room for some messages."""

    def __init__(self, messages: float, most_waiting: int = 10) -> None:
        self.now = 0.0
        self.in_flight = InFlight(
            int(messages * SIZE),
            SIZE,
            seconds=1.0,
            clock=lambda: self.now,
            most_waiting=most_waiting,
        )
        self.answerer = Slow()
        self.service = RouterService(
            self.answerer,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            Silent(),
            Drain(lambda: 0.0),
            Intake(self.in_flight, self.in_flight, Silent(), seconds=1.0),
            tokenize_seconds=1.0,
        )

    @contextmanager
    def streaming(self, *streams: Stream) -> Iterator[list[asyncio.Task[None]]]:
        """Serve streams; nothing is left of them when they have ended."""
        context: Any
        tasks = []
        for context in streams:
            call = self.service.score_stream(context)
            tasks.append(asyncio.create_task(call))
        yield tasks
        assert all(task.done() for task in tasks)
        assert not self.in_flight.bytes
        check(self.in_flight)


def messages(first: int, count: int, **fields: Any) -> list[bytes]:
    """Return requests of about `SIZE` bytes."""
    prompt = pb.Prompt(token_ids_packed=bytes(SIZE - 20))
    numbers = range(first, first + count)
    return [
        pb.ScoreRequest(prompt=prompt, request_id=number, **fields).SerializeToString()
        for number in numbers
    ]


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_stream_reads_no_more_than_there_is_room_for() -> None:
    router = Router(messages=4.5)
    stream = Stream("a", messages(1, 10))
    with router.streaming(stream) as [call]:
        await turns()
        at_work = len(router.answerer.asked)
        assert 2 <= at_work <= 4
        assert router.in_flight.bytes <= router.in_flight.limit
        assert stream.reads == at_work
        router.answerer.go_on.set()
        await call
    assert sorted(reply.request_id for reply in stream.replies) == list(range(1, 11))


async def test_a_stream_waits_unread_for_the_room_of_others() -> None:
    router = Router(messages=1.5)
    one, other = Stream("a", messages(1, 1)), Stream("b", messages(2, 1))
    with router.streaming(one, other) as calls:
        await turns()
        assert router.answerer.asked == [1]
        assert not other.reads
        router.answerer.go_on.set()
        await asyncio.gather(*calls)
    assert router.answerer.asked == [1, 2]


async def test_a_stream_that_finds_no_room_to_wait_in_ends_and_says_why() -> None:
    router = Router(messages=1.5, most_waiting=0)
    idle, other = Stream("a", [], is_idle=True), Stream("b", messages(1, 1))
    with router.streaming(idle, other) as [first, refused]:
        with pytest.raises(RefusedError, match="too many streams") as raised:
            await refused
        assert raised.value.refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_stream_that_sends_nothing_ends_where_another_needs_its_room() -> None:
    router = Router(messages=1.5)
    router.answerer.go_on.set()
    idle, other = Stream("a", messages(1, 1), is_idle=True), Stream("b", messages(2, 1))
    with router.streaming(idle, other) as [first, second]:
        await turns()
        assert len(idle.replies) == 1
        assert not other.reads
        router.now = 10.0
        with pytest.raises(RefusedError, match="the message did not come within"):
            await first
        await second
    assert len(other.replies) == 1


@pytest.mark.parametrize("passed", range(8))
async def test_a_stream_that_is_cancelled_leaves_no_room_taken(passed: int) -> None:
    router = Router(messages=3.5)
    with router.streaming(Stream("a", messages(1, 5)), Stream("b", messages(6, 5))) as calls:
        for _ in range(passed):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_what_is_answered_at_once_has_room_only_until_then() -> None:
    router = Router(messages=1.5)
    stream = Stream("a", messages(1, 2 * STREAM_WIDTH, strategy="at once"))
    with router.streaming(stream) as [call]:
        await call
    assert len(stream.replies) == 2 * STREAM_WIDTH
