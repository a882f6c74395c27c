"""Breakers open after failures, probe and close; and of any reads of buckets a loss is told at once, and once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.indexer.shared.inside import check_breaker
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.buckets import (
    FAILURES,
    LONGEST_PAUSE,
    PAUSE,
    Breaker,
    Life,
    Lives,
    problem_of,
)
from warmpath.indexer.shared.redis.command import Reply, UnreachableError


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


NAMES = KeyNames("t", buckets=3)
WRITES = st.sampled_from([None, b"7", b"12"])
LIVES = st.tuples(st.sampled_from([None, b"1.1", b"2.2"]), WRITES)
READ = st.dictionaries(st.integers(0, 2), LIVES)
OLD: list[Reply] = [[b"1.1", b"7"]] * 3


def told(lives: Lives, read: dict[int, Life], asked_at: float = 0.0, now: float = 0.0) -> bool:
    before = lives.losses
    lives.compare(read, asked_at, now)
    return lives.losses > before


@given(st.lists(READ))
def test_a_bucket_that_is_another_than_when_it_was_read_last_is_told_of(
    reads: list[dict[int, Life]],
) -> None:
    lost: list[None] = []
    lives = Lives(NAMES, lambda: lost.append(None))
    known: dict[int, Life] = {}
    for now, read in enumerate(reads):
        news = any(
            bucket not in known
            or known[bucket][0] != life[0]
            or int(known[bucket][1] or 0) > int(life[1] or 0)
            for bucket, life in read.items()
        )
        assert told(lives, read, now, now) == news
        known |= read
    assert len(lost) == lives.losses


def test_a_reading_that_a_later_one_overtook_is_no_loss() -> None:
    lives = Lives(NAMES, lambda: None)
    lives.compare({0: (b"1.1", b"7")}, 1.0, 2.0)
    lives.compare({0: (b"1.1", b"9")}, 3.0, 4.0)
    assert not told(lives, {0: (b"1.1", b"8")}, 2.5, 5.0)
    assert told(lives, {0: (b"1.1", b"8")}, 4.5, 6.0)


def test_after_a_loss_all_are_read_again_and_only_then_nothing_is_asked() -> None:
    lives = Lives(NAMES, lambda: None)
    assert len(lives.ask(0)) == 3
    lives.take([*OLD[:2], [None, None]], 0, 0.0, 0.0)
    assert lives.ask(0) == []
    assert told(lives, {0: (None, None)})
    assert len(lives.ask(0)) == 3
    lives.take([[b"2.2", None]] * 3, 0, 0.0, 0.0)
    assert lives.ask(0) == []
    assert not told(lives, {0: (b"2.2", b"7"), 1: (b"2.2", None), 2: (b"2.2", b"1")})


def test_who_doubts_has_all_read_again_and_loses_nothing_by_it() -> None:
    lives = Lives(NAMES, lambda: None)
    lives.take(OLD, 0, 0.0, 0.0)
    lives.doubt()
    assert len(lives.ask(0)) == 3
    lives.take(OLD, 0, 0.0, 0.0)
    assert lives.ask(0) == []
    assert lives.losses == 1, "of the first reading"


def test_after_a_disruption_and_until_every_bucket_has_told_all_are_asked() -> None:
    lives = Lives(NAMES, lambda: None)
    lives.take([OLD[0], UnreachableError("gone"), OLD[2]], 0, 0.0, 0.0)
    assert len(lives.ask(0)) == 3
    lives.take(OLD, 0, 0.0, 0.0)
    assert lives.losses == 2, "nobody knew what the one that was away had been"
    assert lives.ask(0) == []
    assert len(lives.ask(1)) == 3
