"""The ranks of a process: their lives, and the time in which it stood still.

A router that stood still does not call its own view exact before it has read what came meanwhile.
"""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest, source
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.ranks import LEAST_STILL, STOOD_STILL, TICK_SECONDS
from warmpath.indexer.trust import Level, Trust
from warmpath.indexer.watch.watched_source import STEP, Pulse, WatchedRank

# The pulse: up to when a process has taken what its sockets had for it


def test_nothing_is_known_before_the_third_beat() -> None:
    pulse = Pulse()
    for now in (1.0, 1.1):
        pulse.beat(now)
        assert not pulse.is_known
        assert pulse.known_until == -math.inf
    pulse.beat(1.2)
    assert pulse.is_known
    assert pulse.known_until == 1.0


def test_after_a_standstill_what_came_meanwhile_is_not_known_to_be_read() -> None:
    pulse = Pulse()
    for now in (1.0, 1.1, 1.2, 9.0, 9.1):
        pulse.beat(now)
    assert pulse.known_until == 1.2
    pulse.beat(9.2)
    assert pulse.known_until == 9.0


def test_turns_in_quick_succession_give_zeromq_no_time() -> None:
    pulse = Pulse()
    for number in range(100):
        pulse.beat(1.0 + number * STEP / 100)
    assert not pulse.is_known


@given(st.lists(st.floats(0.0, 3.0), max_size=50))
@settings(max_examples=examples(300))
def test_two_steps_and_more_lie_between_what_is_known_and_the_last_beat(
    pauses: list[float],
) -> None:
    pulse, now = Pulse(), 0.0
    for pause in pauses:
        now += pause
        before = pulse.known_until
        pulse.beat(now)
        assert before <= pulse.known_until <= now - 2 * STEP + 1e-9


class Stand:
    """An ingest whose loop turns when a test says so, and ranks that are exact by their events."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ingest = new_ingest(clock=lambda: self.now)
        self.rank = self.follow(0)

    def follow(self, number: int) -> RankIngest:
        rank = self.ingest.add(source("p", rank=number, has_replay=False))
        rank.connected()
        rank.live("", *EngineModel().store((1, 2)))
        return rank

    def beat(self, times: int) -> None:
        """Let the loop turn as it does while nothing holds it up."""
        for _ in range(times):
            self.now += TICK_SECONDS
            self.ingest.tick(1000)
            self.ingest.beat()

    def answer(self) -> Trust:
        """Return the trust that an answer has."""
        self.ingest.expire()
        return self.rank.trust


def test_while_the_loop_turns_nothing_is_doubted() -> None:
    stand = Stand()
    for _ in range(200):
        stand.beat(1)
        assert stand.answer().level is Level.EXACT
        stand.now += LEAST_STILL / 4
        assert stand.answer().level is Level.EXACT


def test_an_answer_after_a_standstill_is_not_exact_before_the_loop_has_turned_three_times() -> None:
    stand = Stand()
    stand.beat(10)
    stand.now += 2 * LEAST_STILL
    assert stand.answer() == Trust(Level.DEGRADED, STOOD_STILL, stand.now)
    for _ in range(2):
        stand.beat(1)
        assert stand.answer().level is Level.DEGRADED
    stand.beat(1)
    assert stand.answer().level is Level.EXACT


def test_a_rank_whose_events_are_late_makes_no_other_one_doubtful() -> None:
    stand = Stand()
    late = stand.follow(1)
    stand.beat(10)
    late.lag.seconds = 0.8
    stand.now += 1.3 * LEAST_STILL
    assert stand.answer().level is Level.EXACT
    assert late.trust == Trust(Level.DEGRADED, STOOD_STILL, stand.now)
    stand.now += LEAST_STILL
    assert stand.answer() == Trust(Level.DEGRADED, STOOD_STILL, stand.now)
    stand.beat(3)
    assert {stand.answer().level, late.trust.level} == {Level.EXACT}


def test_the_loop_itself_notices_that_it_stood_still() -> None:
    """Answers may come before anybody asks `expire`: as for a pick whose match was made earlier."""
    stand = Stand()
    stand.beat(10)
    stand.now += 2 * LEAST_STILL
    stand.beat(1)
    assert stand.rank.trust.level is Level.DEGRADED
    stand.beat(3)
    assert stand.rank.trust.level is Level.EXACT


def test_a_rank_that_comes_while_the_loop_stands_still_is_exact_once_it_goes_on() -> None:
    stand = Stand()
    stand.beat(10)
    stand.now += 2 * LEAST_STILL
    stand.answer()
    other = stand.follow(1)
    stand.beat(4)
    assert other.trust.level is Level.EXACT
    assert stand.answer().level is Level.EXACT


def test_where_nobody_follows_ranks_in_real_time_nothing_stands_still() -> None:
    stand = Stand()
    stand.now += 3600.0
    assert stand.answer().level is Level.EXACT


NAMES = [("p", 0), ("p", 1), ("q", 0)]


class AnyLives(RuleBasedStateMachine):
    """Ranks come, begin anew and go; whoever keeps their lives sees by one number that none has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.ingest = new_ingest()
        self.seen = self.ingest.life_changes, self.ingest.lives(NAMES)

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(["follow", "watch", "blind"]))
    def comes(self, name: RankName, how: str) -> None:
        if self.ingest.rank(*name) is None:
            if how == "follow":
                self.ingest.add(source(name[0], rank=name[1]))
            elif how == "watch":
                self.ingest.watch(*name)
            else:
                self.ingest.add_blind(*name)

    @rule(name=st.sampled_from(NAMES), keep=st.booleans())
    def begins_anew(self, name: RankName, keep: bool) -> None:
        rank = self.ingest.rank(*name)
        if isinstance(rank, RankIngest):
            rank.connected()
            rank.failed("a bug")
        elif isinstance(rank, WatchedRank):
            rank.begin_snapshot(keep=keep)

    @rule(name=st.sampled_from(NAMES))
    def goes(self, name: RankName) -> None:
        if self.ingest.rank(*name) is not None:
            self.ingest.remove(*name)

    @invariant()
    def no_life_changes_uncounted(self) -> None:
        changes, lives = self.ingest.life_changes, self.ingest.lives(NAMES)
        assert changes >= self.seen[0]
        assert changes > self.seen[0] or lives == self.seen[1]
        self.seen = changes, lives


AnyLives.TestCase.settings = settings(max_examples=examples(100))
TestAnyLives = AnyLives.TestCase
