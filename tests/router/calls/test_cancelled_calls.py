"""Calls that are cancelled over the network leave nothing in the router."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from tests.fake_engine import FakeEngine, tokenized
from tests.fake_http import Answer, Asked
from tests.h2grpc.http2.hostile_client import Http2Client
from tests.router.pick_stand import QUIET, Stand, pod, prompt, standing
from tests.router.running_router import TRANSPORT, metrics_of
from tests.waiting import until
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.prompt import texts, tokenizer_sources

ours = pytest.mark.skipif(
    TRANSPORT == "grpcio", reason="gRPC's own server does not tell of calls that it has answered"
)

TWO = QUIET + pod("a") + pod("b")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path, TWO, metrics="127.0.0.1:0") as stand:
        yield stand


async def counts(stand: Stand, **wanted: float) -> None:
    async def are_so() -> bool:
        found = await metrics_of(stand.http_address)
        return all(found.get(f"warmpath_{name}", 0.0) == value for name, value in wanted.items())

    await until(are_so)


def ended(method: str, code: str, count: float) -> dict[str, float]:
    return {f'requests_total{{code="{code}",method="{method}"}}': count}


def pick() -> bytes:
    return pb.PickRequest(prompt=prompt(), session_id="s").SerializeToString()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as a warning or worse, except that the engines send no events."""
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    return [text for text in told if "pods send no events" not in text]


async def test_a_pick_whose_answer_cannot_be_written_is_taken_back(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    async with Http2Client(stand.address) as client:
        call = client.call("Pick", pick())
        await counts(stand, bookings=1)
        assert not await stand.decisions(), "nobody has it yet"
        client.cancel(call)
        await counts(stand, bookings=0, believed_blocks=0, **ended("Pick", "CANCELLED", 1))
    assert (await metrics_of(stand.http_address))["warmpath_picks_cancelled_total"] == 1
    [decision] = await stand.decisions()
    assert decision.state == pb.Decision.CANCELLED
    assert not (await stand.diagnose()).attributions
    assert not warnings(caplog)


async def test_a_connection_that_breaks_takes_its_picks_back(stand: Stand) -> None:
    async with Http2Client(stand.address) as client:
        for _ in range(10):
            client.call("Pick", pick())
        await counts(stand, bookings=10)
    await counts(stand, bookings=0, **ended("Pick", "CANCELLED", 10))


async def test_picks_that_are_cancelled_as_they_are_sent_leave_nothing(stand: Stand) -> None:
    async with Http2Client(stand.address) as client:
        for _ in range(100):
            client.call("Pick", pick(), reset=True)
        # What comes after them on the same connection is read after them.
        last = client.call("Pick", pick())
        await counts(stand, bookings=1)
        client.cancel(last)
        await counts(stand, bookings=0, believed_blocks=0)
    answer = await stand.pick(prompt())
    assert (await metrics_of(stand.http_address))["warmpath_bookings"] == 1
    assert await stand.report(answer.booking_id, "FINISHED")


@pytest.mark.parametrize("pause", [0.0, 0.0005])
async def test_callers_that_name_their_picks_can_end_them_whenever_they_are_cancelled(
    stand: Stand, pause: float
) -> None:
    calls = []
    for number in range(100):
        request = pb.PickRequest(prompt=prompt(), booking_id=f"call-{number}")
        calls.append(stand.stub.Pick(request))
        asyncio.get_running_loop().call_later(pause * number, calls[-1].cancel)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert any(not isinstance(one, pb.PickResponse) for one in ends)
    for number in range(100):
        await stand.report(f"call-{number}", "FAILED")
    await counts(stand, bookings=0)


@ours
async def test_a_pick_that_is_cancelled_after_its_answer_was_sent_is_taken_back(
    stand: Stand,
) -> None:
    async with Http2Client(stand.address, window=1 << 16) as client:
        calls = [client.call("Pick", pick()) for _ in range(10)]
        await counts(stand, bookings=10, **ended("Pick", "OK", 10))
        for call in calls:
            client.cancel(call)
        await counts(stand, bookings=0, picks_cancelled_total=10)
    decisions = await stand.decisions()
    assert [one.state for one in decisions] == [pb.Decision.CANCELLED] * 10


@ours
async def test_picks_whose_calls_are_reset_at_any_moment_leave_nothing(stand: Stand) -> None:
    loop = asyncio.get_running_loop()
    async with Http2Client(stand.address, window=1 << 16) as client:
        for number in range(200):
            call = client.call("Pick", pick())
            loop.call_later(0.00002 * number, client.cancel, call)
            if not number % 20:
                await asyncio.sleep(0)
        # What comes after them on the same connection is read after them.
        last = client.call("Pick", pick())
        await counts(stand, bookings=1)
        client.cancel(last)
        await counts(stand, bookings=0)
    assert (await metrics_of(stand.http_address))["warmpath_picks_cancelled_total"] > 0


@ours
async def test_a_report_shows_that_an_answer_was_read_whatever_is_reset_then(stand: Stand) -> None:
    request = pb.PickRequest(prompt=prompt(), booking_id="x").SerializeToString()
    async with Http2Client(stand.address, window=1 << 16) as client:
        call = client.call("Pick", request)
        await counts(stand, bookings=1, **ended("Pick", "OK", 1))
        assert await stand.report("x", "STARTED")
        client.cancel(call)
        await counts(stand, bookings=1)
    await counts(stand, bookings=1)
    assert await stand.report("x", "FINISHED")


@ours
async def test_a_connection_that_breaks_takes_back_the_answers_that_it_has_not_read(
    stand: Stand,
) -> None:
    async with Http2Client(stand.address, window=1 << 16, acks=False) as client:
        for _ in range(10):
            client.call("Pick", pick())
        await counts(stand, bookings=10, **ended("Pick", "OK", 10))
    await counts(stand, bookings=0, picks_cancelled_total=10)


async def test_answers_that_were_read_outlast_their_connection(stand: Stand) -> None:
    async with grpc.aio.insecure_channel(
        stand.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        answers = [await stub.Pick(pb.PickRequest(prompt=prompt())) for _ in range(10)]
    for answer in answers:
        assert await stand.report(answer.booking_id, "FINISHED")


async def test_scores_that_are_cancelled_while_they_wait_leave_nothing(
    tmp_path: Path,
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(asked: Asked) -> Answer:
        engine.gate.wait()
        return tokenized(asked)

    models = f'tokenizer-urls = ["{engine.url}"]'
    tables = f"{TWO}[limits]\ntokenize-seconds = 60\n"
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)
    monkeypatch.setattr(texts, "ASKING", 1)
    async with standing(tmp_path, tables, models=models, metrics="127.0.0.1:0") as stand:
        await stand.score("so that the tokenizer is loaded")
        loaded = len(engine.asked)
        engine.answer = answer
        tasks = asyncio.all_tasks()
        sent = [f"{number} " * 40 for number in range(10)]
        calls = [stand.score(text) for text in sent]
        # One is with the engine, the others wait for their turn.
        await counts(stand, tokenizer_waiting_prompts=10)
        for call in calls[:-1]:
            call.cancel()
        ends = await asyncio.gather(*calls[:-1], return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ends)
        await counts(stand, **ended("Score", "CANCELLED", 9))
        engine.gate.set()
        answer = await calls[-1]
        assert answer.covered_chars == len(sent[-1]), "it is not cancelled with the others"
        await counts(stand, tokenizer_waiting_prompts=0, tokenizer_waiting_bytes=0)
        await until(lambda: _is_over(tasks))
        assert len(engine.asked) <= loaded + 10
    assert not warnings(caplog)


async def _is_over(tasks: "set[asyncio.Task[object]]") -> bool:
    return not [
        task
        for task in asyncio.all_tasks() - tasks
        if task is not asyncio.current_task()
        and any(kind in task.get_name() for kind in ("HandleExceptions", "rpc_task"))
    ]


@pytest.mark.parametrize("messages", [1, 30])
async def test_scores_that_nobody_reads_end_with_their_call(
    stand: Stand, messages: int, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = asyncio.all_tasks()
    request = pb.ScoreRequest(prompt=prompt()).SerializeToString()
    async with Http2Client(stand.address) as client:
        call = client.call("ScoreStream", *[request] * messages)
        await until(lambda: _has_scored(stand))
        client.cancel(call)
        await until(lambda: _is_over(tasks))
    assert not warnings(caplog)


async def _has_scored(stand: Stand) -> bool:
    found = await metrics_of(stand.http_address)
    return found.get('warmpath_requests_total{code="OK",method="ScoreStream"}', 0.0) > 0
