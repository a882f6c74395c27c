"""Reports of several requests in one call: none is lost, repeated or put in another order, whatever the router does."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.warmpath.client.scripted_router import CLIENTS, Refuse, ScriptedRouter, scripted
from warmpath import AsyncClient, PodLoad, Retry
from warmpath.client import reports
from warmpath.client.reports import Reports, Told
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

FINISHED = pb.ReportRequest.FINISHED
BAD = "bad"
"""The booking of a report that the router refuses."""


class ReportsMachine(RuleBasedStateMachine):
    """Reports of a few bookings, whose numbers in `output_tokens` grow, and a router old or new."""

    def __init__(self) -> None:
        super().__init__()
        self.reports = Reports()
        self.made: list[Told] = []
        self.call: pb.ReportRequest | None = None
        self.carried_out: dict[str, list[int]] = defaultdict(list)
        self.lost: dict[str, list[int]] = defaultdict(list)
        self.is_running = False

    @rule(
        booking=st.sampled_from(("a", "b", BAD)),
        kind=st.sampled_from(("", "", "", "loads", "prompt")),
    )
    def report(self, booking: str, kind: str) -> None:
        request = pb.ReportRequest(booking_id=booking, event=FINISHED, output_tokens=len(self.made))
        if kind == "loads":
            request.loads.add(pod="a")
        elif kind:
            request.prompt.model = "m"
        told = Told(request, time.monotonic() + len(self.made))
        self.made.append(told)
        assert self.reports.add(told) is not self.is_running
        self.is_running = True

    @precondition(lambda self: self.is_running and self.call is None)
    @rule(is_alone=st.booleans())
    def next(self, is_alone: bool) -> None:
        self.call, end = self.reports.next(is_alone=is_alone)
        assert not (is_alone and self.call.also)
        assert end == max(self.made[number].end for number in self._numbers())

    def is_over(self) -> None:
        self.call, self.is_running = None, self.reports.goes_on()
        assert self.is_running is not all(told.known.done() for told in self.made)

    @precondition(lambda self: self.call is not None)
    @rule(is_old=st.booleans())
    def answer(self, is_old: bool) -> None:
        assert self.call is not None
        told = [self.call] if is_old else [self.call, *self.call.also]
        if any(one.booking_id == BAD for one in told):
            refused = self._numbers()
            assert self.reports.failed(grpc.StatusCode.INVALID_ARGUMENT) is (len(refused) == 1)
            if len(refused) == 1:
                self.lost[BAD] += refused
        else:
            for one in told:
                self.carried_out[one.booking_id].append(one.output_tokens)
            self.reports.answered(
                pb.ReportResponse(known=True, also_known=[] if is_old else [True] * (len(told) - 1))
            )
        self.is_over()

    @precondition(lambda self: self.call is not None)
    @rule(is_cancelled=st.booleans())
    def lose(self, is_cancelled: bool) -> None:
        assert self.call is not None
        for one in (self.call, *self.call.also):
            self.lost[one.booking_id].append(one.output_tokens)
        if is_cancelled:
            self.reports.stop()
            self.call, self.is_running = None, False
        else:
            assert self.reports.failed(grpc.StatusCode.UNAVAILABLE)
            self.is_over()

    def _numbers(self) -> list[int]:
        assert self.call is not None
        return [one.output_tokens for one in (self.call, *self.call.also)]

    @invariant()
    def each_is_carried_out_or_lost_once_in_its_bookings_order_and_answered(self) -> None:
        for booking in ("a", "b", BAD):
            done, lost = self.carried_out[booking], self.lost[booking]
            assert done == sorted(done)
            over = sorted([*done, *lost])
            mine = [n for n, told in enumerate(self.made) if told.request.booking_id == booking]
            assert over == mine[: len(over)]
            for number in mine:
                known = self.made[number].known
                assert known.done() is (number in over)
                assert not known.done() or known.result() is (number in done)


TestReports = ReportsMachine.TestCase
TestReports.settings = settings(max_examples=examples(500), stateful_step_count=30, deadline=None)


@pytest.fixture
async def router() -> AsyncIterator[ScriptedRouter]:
    async with scripted() as router:
        yield router


@pytest.fixture(params=CLIENTS)
async def client(request: pytest.FixtureRequest, router: ScriptedRouter) -> AsyncIterator[Any]:
    async with CLIENTS[request.param](router.address, retry=Retry(attempts=1)) as client:
        yield client


async def first_of(router: ScriptedRouter, client: Any, others: int) -> "list[asyncio.Task[bool]]":
    """Return tasks that report, all but the first while the first one's call waits for `router.gate`."""
    router.gate = asyncio.Event()
    tasks = [asyncio.create_task(client.report("0", "first_token"))]
    while not router.asked:
        await asyncio.sleep(0.001)
    for number in range(1, others + 1):
        tasks.append(asyncio.create_task(client.report(str(number), "finished")))
        while len(client_reports(client)._waiting) < number:
            await asyncio.sleep(0.001)
    return tasks


def client_reports(client: Any) -> Reports:
    return getattr(client, "client", client).__dict__["_reports"]


async def test_reports_that_come_while_a_call_is_under_way_go_together_in_the_next(
    router: ScriptedRouter, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_TOGETHER", 3)
    tasks = await first_of(router, client, 4)
    router.script.extend([pb.ReportResponse(known=True)] * 3)
    router.gate.set()
    assert await asyncio.gather(*tasks) == [True] * 5
    assert [len(call.also) for _, call in router.asked] == [0, 2, 0]
    assert [one.booking_id for one in router.reports()] == ["0", "1", "2", "3", "4"]


async def test_a_lost_call_is_told_to_all_whose_report_was_in_it_and_to_nobody_else(
    router: ScriptedRouter, client: Any
) -> None:
    tasks = await first_of(router, client, 2)
    away = Refuse(grpc.StatusCode.UNAVAILABLE)
    router.script.extend([pb.ReportResponse(known=True), away])
    router.gate.set()
    assert await asyncio.gather(*tasks) == [True, False, False]


async def test_a_caller_that_waits_no_longer_leaves_its_report_and_those_of_others(
    router: ScriptedRouter,
) -> None:
    async with AsyncClient(router.address) as client:
        tasks = await first_of(router, client, 3)
        tasks[0].cancel()
        tasks[2].cancel()
        assert not await client.report("4", "finished", timeout=0.01)
        router.script.extend([pb.ReportResponse(known=True)] * 2)
        router.gate.set()
        assert [await tasks[1], await tasks[3]] == [True, True]
    assert [one.booking_id for one in router.reports()] == ["0", "1", "2", "3", "4"]


async def test_beyond_the_most_that_wait_reports_are_dropped(
    router: ScriptedRouter, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_WAITING", 2)
    tasks = await first_of(router, client, 2)
    assert not await client.report("3", "finished", loads=[PodLoad("a")])
    router.gate.set()
    await asyncio.gather(*tasks)
    assert [one.booking_id for one in router.reports()] == ["0", "1", "2"]
