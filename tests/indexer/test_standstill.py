"""A router that stood still does not call its own view exact before it has read what came meanwhile."""

from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest, source
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.ranks import LEAST_STILL, STOOD_STILL, TICK_SECONDS
from warmpath.indexer.trust import Level, Trust


class Stand:
    """An ingest whose loop turns when a test says so, and ranks that are exact by their events."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ingest = new_ingest(clock=lambda: self.now)
        self.rank = self.follow(0)

    def follow(self, number: int) -> RankIngest:
        rank = self.ingest.add(source("p", rank=number, has_replay=False))
        rank.connected()
        message = EngineModel().store((1, 2))
        assert message
        rank.live("", *message)
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
