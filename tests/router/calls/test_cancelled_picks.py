"""A pick whose caller goes away leaves nothing: no booking, belief, session, task, waiter or window.

Each call is cancelled at any of the moments at which it waits: for a tokenizer, the shared index, its
group, the transport that its answer is written to. Callers that name their picks can end any of them,
whether or not they saw the answer; one may try again with the same name, or share it with another caller.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.examples import examples
from tests.router.pick_calls import Calls, CallsMachine, When
from warmpath.process import loop
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.limits import BadRequestError


@pytest.fixture
def calls() -> Iterator[Calls]:
    with closing(Calls()) as calls:
        yield calls


@pytest.mark.parametrize(("turn", "withdrawn"), [(3, 0), (4, 1)])
def test_a_call_that_is_cancelled_in_the_turns_of_a_large_fleet_leaves_nothing(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, turn: int, withdrawn: int
) -> None:
    monkeypatch.setattr(loop, "MANY_RANKS", 1)
    calls.start(1, at=turn, session_id="a")
    calls.finish()
    assert not calls.answered
    assert calls.cancelled == 1
    assert calls.parts.picker.withdrawn == withdrawn
    calls.check()
    calls.check_left()


def test_a_report_proves_an_answer_whose_write_has_not_ended(calls: Calls) -> None:
    calls.start(3, is_unread=True, is_gone=True)
    calls.go_on()
    calls.go_on()
    name = next(reversed(calls.parts.picker._placed))
    report = pb.ReportRequest(booking_id=name, event=pb.ReportRequest.FIRST_TOKEN)
    assert calls.loop.run_until_complete(calls.picks.report(report, 0.0, 0.0)).known
    calls.finish()
    assert calls.parts.picker.get(name) is not None


def test_a_pod_that_goes_before_the_answer_is_written_keeps_no_blocks(calls: Calls) -> None:
    calls.start(1, session_id="a", pods=["pod-blind"])
    calls.go_on()
    calls.go_on()
    assert len(calls.parts.bookings) == 1
    calls.parts.picking.forget(calls.parts.pods[1])
    calls.finish()
    assert len(calls.answered) == 1
    assert calls.parts.believed.count("pod-blind", 0) == 0
    calls.check()


class AnyCancellation(CallsMachine):
    """Calls that are cancelled anywhere, or whose answers cannot be written, among calls that are not."""

    @rule(
        prompt=st.integers(1, 2),
        at=st.integers(0, 5),
        when=st.sampled_from(["waiting", "answered"]),
        is_gone=st.booleans(),
        is_unread=st.booleans(),
        session=st.sampled_from(["", "a", "b"]),
        shadow=st.booleans(),
        disaggregated=st.booleans(),
        pods=st.sampled_from([(), ("pod-blind",)]),
    )
    def call(self, prompt: int, at: int, when: When, session: str, **fields: Any) -> None:
        self.calls.start(prompt, at=at, when=when, session_id=session, **fields)

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        self.calls.check()
        assert len(self.calls.parts.picker) <= len(self.calls.running) + len(self.calls.answered)

    def teardown(self) -> None:
        with closing(self.calls) as calls:
            calls.finish()
            calls.check()
            calls.check_left()


TestAnyCancellation = AnyCancellation.TestCase
TestAnyCancellation.settings = settings(max_examples=examples(30), stateful_step_count=20)


def report(calls: Calls, name: str, event: str = "FAILED") -> bool:
    value = pb.ReportRequest.Event.Value(event)
    told = calls.picks.report(pb.ReportRequest(booking_id=name, event=value), 0.0, 0.0)
    known = calls.loop.run_until_complete(told).known
    calls.turns()
    return known


@pytest.mark.parametrize("event", ["FAILED", "FINISHED"])
@pytest.mark.parametrize("waits", [0, 1])
def test_a_pick_whose_end_is_reported_while_it_waits_is_not_made(
    calls: Calls, waits: int, event: str
) -> None:
    calls.start(1, booking_id="x")
    for _ in range(waits):
        calls.go_on()
    assert report(calls, "x", event)
    assert not calls.running
    [(status, said)] = calls.aborted
    assert status is grpc.StatusCode.ABORTED
    assert said == "booking_id: the end of this pick was reported before it was made"
    calls.finish()
    assert not len(calls.parts.bookings)
    assert not report(calls, "x")
    calls.check()
    calls.check_over()


def test_a_retry_replaces_what_the_first_pick_booked(calls: Calls) -> None:
    calls.start(1, booking_id="x", session_id="a")
    calls.finish()
    calls.start(2, booking_id="x", session_id="b")
    calls.finish()
    assert len(calls.answered) == 2
    assert len(calls.parts.bookings) == len(calls.parts.picker) == 1
    assert len([*calls.parts.believed.arrivals()]) == 1
    placed = calls.parts.picker.get("x")
    assert placed is not None
    assert placed.request_id == "b"
    states = [one.state for one in calls.decisions.listed()]
    assert states == [pb.Decision.PICKED, pb.Decision.FAILED]
    calls.check()


def test_a_retry_is_not_weighed_against_what_it_replaces(calls: Calls) -> None:
    for _ in range(20):
        calls.start(1, booking_id="x", pods=["pod-0"])
        calls.finish()
        assert calls.answered[-1][1].candidates[0].outstanding_tokens == 0


def test_a_retry_ends_a_pick_that_is_still_waiting(calls: Calls) -> None:
    calls.start(1, booking_id="x", session_id="a")
    calls.start(2, booking_id="x", session_id="b")
    [(status, said)] = calls.aborted
    assert status is grpc.StatusCode.ABORTED
    assert said == "booking_id: a later pick has this name"
    calls.finish()
    [(request, _)] = calls.answered
    assert request.session_id == "b"
    assert len(calls.parts.bookings) == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x" * 129, "booking_id: is longer than 128 bytes"),
        ("a b", "booking_id: has a character that is not printable ASCII, or a space"),
        ("naïve", "booking_id: has a character that is not printable ASCII, or a space"),
        ("x\x1b[2J", "booking_id: has a character that is not printable ASCII, or a space"),
        ("0123456789ab-0123456789abcdef", "booking_id: has the form of the router's own booking ids"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_is_refused(calls: Calls, name: str, problem: str) -> None:
    calls.start(1, booking_id=name)
    [(status, said)] = calls.aborted
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert said == problem
    assert not len(calls.waits)
    if "router's own" not in problem:
        with pytest.raises(BadRequestError) as refused:
            report(calls, name)
        assert str(refused.value) == problem


class AnyNames(CallsMachine):
    """Calls that share two names, are cancelled anywhere, tried again and reported at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, str] = {}
        """The session of each name's latest call; each call has its own."""
        self.spent: set[str] = set()
        """Names whose end was reported since their latest call began."""
        self.begun = 0

    @rule(
        name=st.sampled_from(["x", "y"]),
        prompt=st.integers(1, 2),
        at=st.integers(0, 5),
        when=st.sampled_from(["waiting", "answered"]),
        is_gone=st.booleans(),
        is_unread=st.booleans(),
        shadow=st.booleans(),
        disaggregated=st.booleans(),
    )
    def call(self, name: str, prompt: int, at: int, when: When, **fields: Any) -> None:
        self.begun += 1
        session = f"s{self.begun}"
        self.latest[name] = session
        self.spent.discard(name)
        self.calls.start(prompt, at=at, when=when, booking_id=name, session_id=session, **fields)

    @rule(
        name=st.sampled_from(["x", "y"]),
        event=st.sampled_from(["STARTED", "FIRST_TOKEN", "FINISHED", "FAILED"]),
    )
    def report(self, name: str, event: str) -> None:
        report(self.calls, name, event)
        if event in {"FINISHED", "FAILED"}:
            self.spent.add(name)

    @invariant()
    def a_name_is_of_its_latest_pick_until_its_end_is_reported(self) -> None:
        self.calls.check()
        picker = self.calls.parts.picker
        answered = {asked.session_id for asked, _ in self.calls.answered}
        booked = 0
        for name, session in self.latest.items():
            placed = picker.get(name)
            if name in self.spent:
                assert placed is None
            elif session in answered:
                assert placed is not None
                assert placed.request_id == session
            if placed is not None:
                booked += (placed.booking is not None) + (placed.decoding is not None)
        assert len(self.calls.parts.bookings) <= booked
        assert len(picker) <= len(self.latest)

    def teardown(self) -> None:
        with closing(self.calls) as calls:
            calls.finish()
            calls.check_over()
            for name in self.latest:
                report(calls, name)
            calls.check()
            assert not len(calls.parts.picker)
            assert not len(calls.parts.bookings)
            assert not calls.told().ranks
            assert {said for _, said in calls.aborted} <= {
                "booking_id: a later pick has this name",
                "booking_id: the end of this pick was reported before it was made",
            }


TestAnyNames = AnyNames.TestCase
TestAnyNames.settings = settings(max_examples=examples(50), stateful_step_count=30)
