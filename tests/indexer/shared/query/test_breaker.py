"""The circuit breaker opens after failures in a row, probes, and closes; against a model of it."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.indexer.shared.inside import check_breaker
from warmpath.indexer.shared.query.buckets import (
    FAILURES,
    LONGEST_PAUSE,
    PAUSE,
    Breaker,
    problem_of,
)


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(0.0)
    return breaker


def probes_until_closed(breaker: Breaker, *, fail: int) -> list[float]:
    """Return the times of the probes; the first `fail` of them fail."""
    at, step = [], 0
    while not breaker.is_closed:
        now = step / 1000
        if breaker.is_due(now):
            breaker.probed(now, ok=len(at) == fail)
            at.append(now)
        step += 1
    return at


def test_the_pause_between_probes_doubles_to_a_bound() -> None:
    at = probes_until_closed(opened(), fail=8)
    pauses = [after - before for before, after in zip([0.0, *at], at, strict=False)]
    expected = [min(LONGEST_PAUSE, PAUSE * 2**n) for n in range(9)]
    assert [round(pause, 2) for pause in pauses] == expected


def test_what_closed_on_a_probe_opens_again_on_one_failure_and_waits_longer() -> None:
    breaker = opened()
    breaker.probed(1.0, ok=True)
    assert breaker.is_closed
    breaker.failed(1.0)
    assert (breaker.is_closed, breaker.openings) == (False, 2)
    assert not breaker.is_due(1.0 + PAUSE)
    assert breaker.is_due(1.0 + 2 * PAUSE)


def test_a_success_after_the_probe_heals_it_wholly() -> None:
    breaker = opened()
    breaker.probed(1.0, ok=True)
    breaker.succeeded()
    for _ in range(FAILURES - 1):
        breaker.failed(2.0)
    assert breaker.is_closed
    breaker.failed(2.0)
    assert breaker.is_due(2.0 + PAUSE)


def test_what_was_asked_before_it_opened_changes_nothing_any_more() -> None:
    breaker = opened()
    breaker.succeeded()
    breaker.failed(0.0)
    assert (breaker.is_closed, breaker.openings) == (False, 1)


@pytest.mark.parametrize("reply", [None, b"what", [], [b"\x01\0\x01\0", None, None, None], 3])
def test_a_reply_that_is_none_is_a_problem(reply: object) -> None:
    assert "does not fit" in problem_of(reply, 5)


class BreakerMachine(RuleBasedStateMachine):
    """Whatever happens: it opens only after failures in a row, and a probe comes within the bound."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = 0.0
        self.in_a_row = 0
        self.last_probe = 0.0

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.is_closed)
    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()
        self.in_a_row = 0

    @precondition(lambda self: self.breaker.is_closed)
    @rule()
    def fail(self) -> None:
        self.breaker.failed(self.now)
        self.in_a_row += 1
        assert self.breaker.is_closed == (self.in_a_row < FAILURES)
        if not self.breaker.is_closed:
            self.last_probe = self.now

    @precondition(lambda self: not self.breaker.is_closed)
    @rule(ok=st.booleans())
    def probe(self, *, ok: bool) -> None:
        taken = self.breaker.is_due(self.now)
        waited = self.now - self.last_probe
        assert taken or waited <= LONGEST_PAUSE + 1e-6
        assert not taken or waited >= PAUSE - 1e-6
        if not taken:
            return
        self.last_probe = self.now
        self.breaker.probed(self.now, ok=ok)
        if ok:
            assert self.breaker.is_closed
            self.in_a_row = FAILURES - 1

    @invariant()
    def holds(self) -> None:
        check_breaker(self.breaker)


TestBreaker = BreakerMachine.TestCase
