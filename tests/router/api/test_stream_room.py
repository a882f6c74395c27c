"""Messages of streams of Scores have room like those of other calls, once they are read."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from router.api.in_flight import InFlight
from router.api.intake import Intake
from router.api.score import Scored
from router.api.service import STREAM_WIDTH, RouterService
from router.drain import Drain
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire

SIZE = 1000


class Silent:
    """Measures nothing."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        pass

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        pass


class Slow:
    """Answers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go_on = asyncio.Event()

    def waits(self, request: wire.ScoreRequest) -> bool:
        return request.strategy != "at once"

    async def score(
        self, request: wire.ScoreRequest, timeout: float, patience: float = 0.0
    ) -> Scored:
        del timeout, patience
        self.asked.append(request.request_id)
        if self.waits(request):
            await self.go_on.wait()
        return Scored(b"", 0, 0)


class Stream:
    """A caller of ScoreStream, one connection with the messages given."""

    def __init__(self, peer: str, messages: list[bytes]) -> None:
        self._peer = peer
        self._messages = messages
        self.read = 0
        self.replies: list[pb.ScoreStreamResponse] = []

    def peer(self) -> str:
        return self._peer

    async def requests(self) -> AsyncIterator[bytes]:
        for message in self._messages:
            self.read += 1
            yield message

    async def write(self, message: bytes) -> None:
        self.replies.append(pb.ScoreStreamResponse.FromString(message))


class Router:
    """A service with room for some messages."""

    def __init__(self, messages: float, most_waiting: int = 10) -> None:
        self.in_flight = InFlight(
            int(messages * SIZE), SIZE, seconds=1.0, clock=lambda: 0.0, most_waiting=most_waiting
        )
        self.answerer = Slow()
        self.service = RouterService(
            self.answerer,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            Silent(),
            Drain(lambda: 0.0),
            Intake(self.in_flight, Silent(), seconds=1.0),
            tokenize_seconds=1.0,
        )

    @contextmanager
    def streaming(self, *streams: Stream) -> Iterator[list[asyncio.Task[None]]]:
        """Serve streams; nothing is left of them when they have ended."""
        context: Any
        tasks = []
        for context in streams:
            call = self.service.ScoreStream(context.requests(), context)
            tasks.append(asyncio.create_task(call))
        yield tasks
        assert all(task.done() for task in tasks)
        assert not self.in_flight.bytes
        self.in_flight.check()


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
        # The one that was read last waits for room.
        assert stream.read == at_work + 1
        router.answerer.go_on.set()
        await call
    assert sorted(reply.request_id for reply in stream.replies) == list(range(1, 11))


async def test_a_stream_waits_for_the_room_of_others() -> None:
    router = Router(messages=1.5)
    one, other = Stream("a", messages(1, 1)), Stream("b", messages(2, 1))
    with router.streaming(one, other) as calls:
        await turns()
        assert router.answerer.asked == [1]
        router.answerer.go_on.set()
        await asyncio.gather(*calls)
    assert router.answerer.asked == [1, 2]


async def test_a_message_that_finds_no_room_is_refused_by_name_and_the_stream_goes_on() -> None:
    router = Router(messages=1.5, most_waiting=0)
    one, other = Stream("a", messages(1, 1)), Stream("b", messages(2, 2))
    with router.streaming(one, other) as calls:
        await turns()
        assert [reply.request_id for reply in other.replies] == [2, 3]
        assert {reply.error.code for reply in other.replies} == {
            grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        }
        assert "limits.max-in-flight-bytes" in other.replies[0].error.message
        router.answerer.go_on.set()
        await asyncio.gather(*calls)


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
