"""Picks that wait, over gRPC: until a pod has room, their deadline, their caller's end, the router's end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.error_details import details_of
from tests.router.pick_stand import QUIET, Stand, pod, prompt, standing
from tests.router.running_router import metrics_page
from tests.router.tracing.recorded_spans import Recorded
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.read import parse
from warmpath.router.pick.calibration import USUAL_SHARING
from warmpath.router.queue.lag import LEAST

QUEUE = f'{QUIET}[pick]\nqueue = "on"\nprefill-base-seconds = 60\n{pod("a")}'
"""A fleet of one pod on which a prefill takes longer than a test."""


@asynccontextmanager
async def full(
    folder: Path, tables: str = QUEUE, **settings: Any
) -> AsyncIterator[tuple[Stand, str]]:
    """Run a router whose only pod has a prefill; yield the pick of that prefill with it."""
    async with standing(folder, tables, **settings) as stand:
        # Nothing is held before some first tokens were reported.
        for _ in range(LEAST):
            first = await stand.pick(prompt(first=1), wait=True)
            assert await stand.report(first.booking_id, "FIRST_TOKEN")
            # Not FINISHED, which would show that prefills are fast.
            assert await stand.report(first.booking_id, "FAILED")
        second = await stand.pick(prompt(first=2))
        assert second.waited_seconds < 1
        yield stand, second.booking_id


async def waiting(stand: Stand) -> list[pb.Decision]:
    return [one for one in await stand.decisions() if one.state == pb.Decision.WAITING]


async def wait_for(stand: Stand, number: int) -> None:
    while len(await waiting(stand)) != number:
        await asyncio.sleep(0.01)


async def begin(
    stand: Stand, first: int, number: int = 1, **fields: Any
) -> "asyncio.Task[pb.PickResponse]":
    """Begin a pick, and wait until this number of picks wait."""
    held = asyncio.ensure_future(stand.pick(prompt(first=first), **fields))
    await wait_for(stand, number)
    return held


async def test_a_pick_waits_until_the_first_token_of_another_one(
    tmp_path: Path, transport: str
) -> None:
    async with full(tmp_path, transport=transport) as (stand, before):
        held = await begin(stand, 3)
        [decision] = await waiting(stand)
        assert decision.model == "demo"
        assert decision.standing.pod == "a"
        assert decision.standing.behind == 0
        assert "It waits as the first; a has room in" in decision.reason
        explained = await stand.explain(prompt(first=4))
        assert explained.standing.behind == 1
        assert explained.standing.pod == "a"
        own = (1 - USUAL_SHARING) * 60
        assert 60 < explained.standing.seconds < 60 + own
        assert "It would wait behind 1; a has room in" in explained.reason
        assert not held.done()
        assert await stand.report(before, "FIRST_TOKEN")
        answer = await held
        assert answer.candidates[0].pod == "a"
        assert answer.waited_seconds > 0
        assert await waiting(stand) == []


async def test_waiting_picks_of_a_class_that_is_reloaded_away_get_the_usual_one(
    tmp_path: Path,
) -> None:
    async with full(tmp_path) as (stand, before):
        high = await begin(stand, 3, priority="high")
        low = await begin(stand, 4, 2, priority="low")
        one_more = '[queue]\nclasses = ["normal", "low"]\nwait-seconds = 50\n'
        assert stand.reload is not None
        await stand.reload(parse(f'{one_more}{QUEUE}[[models]]\nname = "demo"\n', "file"))
        assert (await stand.refused(stand.pick(prompt(first=5), priority="high")))[1].endswith(
            "this caller may name normal, low"
        )
        assert await stand.report(before, "FAILED")
        await low
        assert not high.done()
        await stop(high)


async def test_at_the_deadline_a_pick_goes_to_the_best_pod(tmp_path: Path) -> None:
    async with full(tmp_path) as (stand, _):
        request = pb.PickRequest(prompt=prompt(first=3))
        answer = await stand.stub.Pick(request, timeout=6)
        assert answer.candidates[0].pod == "a"
        assert 3 < answer.waited_seconds < 6


async def test_a_caller_that_goes_leaves_the_queue_and_no_booking(
    tmp_path: Path, transport: str
) -> None:
    async with full(tmp_path, transport=transport) as (stand, before):
        held = await begin(stand, 3)
        await stop(held)
        await wait_for(stand, 0)
        assert await stand.report(before, "FAILED")
        after = await stand.explain(prompt(first=5))
        assert after.candidates[0].details.in_flight == 0
        assert after.candidates[0].details.waiting == 0


async def test_the_end_of_a_waiting_pick_ends_its_call(tmp_path: Path) -> None:
    async with full(tmp_path) as (stand, _):
        held = await begin(stand, 3, booking_id="mine")
        assert await stand.report("mine", "FAILED")
        code, _ = await stand.refused(held)
        assert code is grpc.StatusCode.ABORTED
        assert await waiting(stand) == []


async def test_the_wait_is_a_span_of_its_pick_and_of_no_report(tmp_path: Path) -> None:
    recorded = Recorded()
    async with full(tmp_path, tracer=recorded.tracer) as (stand, before):
        held = await begin(stand, 3)
        assert await stand.report(before, "FIRST_TOKEN")
        waited = await held
    spans = recorded.exporter.get_finished_spans()
    [queue] = [span for span in spans if span.name == "queue"]
    [pick] = [span for span in spans if span.context.span_id == queue.parent.span_id]
    assert pick.name == "warmpath.v1.Router/Pick"
    assert pick.attributes["warmpath.booking_id"] == waited.booking_id
    assert pick.attributes["warmpath.waited_seconds"] == waited.waited_seconds
    # Nor do releases, which weigh all that wait, appear in the traces of reports.
    reports = {span.context.span_id for span in spans if span.name.endswith("/Report")}
    assert not [span for span in spans if span.parent and span.parent.span_id in reports]


async def test_a_shadow_pick_does_not_wait(tmp_path: Path) -> None:
    async with full(tmp_path) as (stand, _):
        answer = await stand.pick(prompt(first=3), shadow=True)
        assert answer.waited_seconds == 0


async def test_waiting_picks_are_answered_when_the_router_ends(
    tmp_path: Path, transport: str
) -> None:
    async with AsyncExitStack() as outlives:
        async with full(tmp_path, transport=transport) as (stand, _):
            channel = grpc.aio.insecure_channel(stand.address)
            await outlives.enter_async_context(channel)
            other = Stand(stand.address, router_pb2_grpc.RouterStub(channel))
            picks = (other.pick(prompt(first=first)) for first in range(3, 43))
            held = [*map(asyncio.ensure_future, picks)]
            # No more are listed than are looked at.
            await wait_for(stand, 32)
        for one in held:
            assert (await one).candidates[0].pod == "a"


async def test_a_full_queue_refuses_with_a_time_to_retry(tmp_path: Path) -> None:
    async with full(tmp_path, f"[queue]\nmax-requests = 1\n{QUEUE}") as (stand, _):
        held = await begin(stand, 3)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stand.pick(prompt(first=4))
        told = details_of(refused.value)
        assert (told.code, told.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert told.metadata["limit"] == "queue.max-requests"
        assert told.retry_seconds == 1
        # A higher class takes the place of a lower one.
        urgent = asyncio.ensure_future(stand.pick(prompt(first=5), priority="high"))
        code, _ = await stand.refused(held)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await stop(urgent)


async def test_half_of_a_connections_calls_may_wait(tmp_path: Path) -> None:
    tables = f"[server.http2]\nmax-streams = 4\n{QUEUE}"
    async with full(tmp_path, tables) as (stand, _):
        held = [await begin(stand, 2 + number, number) for number in (1, 2)]
        answer = await stand.pick(prompt(first=5))
        assert answer.waited_seconds == 0
        for one in held:
            await stop(one)


async def test_an_unknown_class_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    async with full(tmp_path) as (stand, _):
        code, text = await stand.refused(stand.pick(prompt(first=3), priority="huge"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text == "priority: is 'huge'; this caller may name low, normal, high"
        _, text = await stand.refused(stand.pick(prompt(first=3), tenant="x" * 257))
        assert text == "tenant: is longer than 256 bytes"


async def test_the_metrics_count_by_class(tmp_path: Path) -> None:
    async with full(tmp_path, metrics="127.0.0.1:0") as (stand, before):
        held = await begin(stand, 3, priority="low")
        page = await metrics_page(stand.http_address)
        assert 'warmpath_queue_waiting{class="low"} 1.0' in page
        assert "warmpath_queue_hold_seconds 0.4" in page
        assert 'warmpath_queue_steps_back{reason="few-first-tokens"} 0.0' in page
        assert await stand.report(before, "FAILED")
        await held
        page = await metrics_page(stand.http_address)
        assert 'warmpath_queue_wait_seconds_count{class="low",outcome="sent"} 1.0' in page
        assert 'warmpath_queue_waiting{class="low"} 0.0' in page


async def stop(call: "asyncio.Task[pb.PickResponse]") -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
