"""A pick whose caller goes away leaves nothing: no booking, belief, session, task, waiter or window.

Each call is cancelled at any of the moments at which it waits: for a tokenizer, the shared index, its
group, the transport that its answer is written to.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.examples import examples
from tests.router.pick_calls import Calls, CallsMachine, When
from warmpath.process import loop
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


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


@pytest.mark.parametrize(
    "fields", [{}, {"shadow": True}, {"disaggregated": True}, {"is_unread": True}]
)
def test_an_answer_that_cannot_be_written_leaves_nothing(
    calls: Calls, fields: dict[str, Any]
) -> None:
    calls.start(1, is_gone=True, session_id="a", **fields)
    calls.finish()
    assert not calls.answered
    assert calls.parts.picker.withdrawn == 1
    [decision] = calls.decisions.listed()
    assert decision.state == pb.Decision.CANCELLED
    calls.check_left()


def test_a_report_proves_an_answer_whose_write_has_not_ended(calls: Calls) -> None:
    calls.start(3, is_unread=True, is_gone=True)
    calls.go_on()
    calls.go_on()
    name = next(reversed(calls.parts.picker._placed))
    report = pb.ReportRequest(booking_id=name, event=pb.ReportRequest.FIRST_TOKEN)
    assert calls.loop.run_until_complete(calls.picks.reports.report(report)).known
    calls.finish()
    assert calls.parts.picker.get(name) is not None


def test_a_pod_that_goes_before_the_answer_is_written_keeps_no_blocks(
    calls: Calls,
) -> None:
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
