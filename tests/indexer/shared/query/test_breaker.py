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


def test_what_was_asked_before_it_opened_changes_nothing_any_more() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    assert (breaker.is_closed, breaker.openings) == (False, 1)


@pytest.mark.parametrize("reply", [None, b"what", [], [b"\x01\0\x01\0", None, None, None], 3])
def test_a_reply_that_is_none_is_a_problem(reply: object) -> None:
    assert "does not fit" in problem_of(reply, 5)


class BreakerMachine(RuleBasedStateMachine):
    """Whatever happens: it opens after failures in a row, for a pause that doubles until a read succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = 0.0
        self.in_a_row = self.openings = 0
        self.pause = PAUSE
        self.due = 0.0

    @rule(seconds=st.floats(0, 20) | st.sampled_from([PAUSE, LONGEST_PAUSE]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_until_it_is_due(self) -> None:
        self.now = max(self.now, self.due)

    @precondition(lambda self: self.breaker.is_closed)
    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()
        self.in_a_row, self.pause = 0, PAUSE

    @precondition(lambda self: self.breaker.is_closed)
    @rule()
    def fail(self) -> None:
        self.breaker.failed(self.now)
        self.in_a_row += 1
        assert self.breaker.is_closed == (self.in_a_row < FAILURES)
        if not self.breaker.is_closed:
            self.openings += 1
            self.opened()

    def opened(self) -> None:
        self.due = self.now + self.pause
        self.pause = min(LONGEST_PAUSE, 2 * self.pause)

    @precondition(lambda self: not self.breaker.is_closed)
    @rule(ok=st.booleans())
    def probe(self, *, ok: bool) -> None:
        assert self.breaker.is_due(self.now) == (self.now >= self.due)
        if not self.breaker.is_due(self.now):
            return
        self.breaker.probed(self.now, ok=ok)
        assert self.breaker.is_closed == ok
        if ok:
            self.in_a_row = FAILURES - 1
        else:
            self.opened()

    @invariant()
    def holds(self) -> None:
        check_breaker(self.breaker)
        assert self.breaker.openings == self.openings


TestBreaker = BreakerMachine.TestCase
