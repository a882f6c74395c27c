"""How late a rank's events are followed: noticed by the growth of a difference between two clocks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.engines.wire import timestamp_of
from warmpath.indexer.follow.lag import WINDOW_SECONDS, Lag
from warmpath.indexer.follow.stream_source import LAG_SECONDS
from warmpath.indexer.trust import BEHIND, Level

AHEAD = 1.7e9
"""How far the engine's clock is from ours."""
BOUND = LAG_SECONDS


class Followed:
    """A rank whose engine has a clock of its own, and whose batches come as late as is said."""

    def __init__(self, **changes: object) -> None:
        self.now = self.made = 100.0
        self.ahead = AHEAD
        self.sequence = 0
        ingest = new_ingest(MemoryIndex, clock=lambda: self.now)
        self.rank = ingest.add(source(**{"has_replay": False} | changes))  # type: ignore[arg-type]
        self.rank.connected()

    def batch(self, *, late: float = 0.0) -> None:
        """Follow a batch that was made after the one before it, and so many seconds ago."""
        self.now = max(self.now, self.made + late) + 0.1
        self.made = self.now - late
        self.rank.received("", self.sequence, is_all=True)
        self.rank.live_many([("", self.sequence, self.payload())])
        self.sequence += 1

    def payload(self) -> bytes:
        return msgspec.msgpack.encode([self.ahead + self.made, [], 0])

    @property
    def level(self) -> Level:
        return self.rank.trust.level


def following() -> Followed:
    followed = Followed()
    followed.batch()
    assert followed.level is Level.EXACT
    return followed


def test_a_rank_whose_events_are_followed_late_is_not_exact_until_it_has_caught_up() -> None:
    followed = following()
    followed.batch(late=BOUND + 0.5)
    assert followed.level is Level.DEGRADED
    assert followed.rank.trust.reason == f"{BEHIND}: more than 2 s"
    assert followed.rank.lag.seconds == pytest.approx(BOUND + 0.5)
    followed.batch(late=BOUND / 2 + 0.1)
    assert followed.level is Level.DEGRADED
    followed.batch(late=0.1)
    assert followed.level is Level.EXACT


def test_a_difference_between_the_clocks_is_no_lag() -> None:
    followed = Followed()
    followed.ahead = -100.0 + 1e-3
    for late in (0.5, 0.0, 0.5):
        followed.batch(late=late)
        assert followed.level is Level.EXACT
    assert followed.rank.lag.seconds == pytest.approx(0.5)


def test_an_engine_that_falls_silent_behind_its_last_late_batch_is_exact_again() -> None:
    followed = following()
    followed.batch(late=9.0)
    followed.now += BOUND + 0.1
    followed.rank.tick()
    assert followed.level is Level.EXACT
    assert followed.rank.lag.seconds == 0


def test_time_that_passes_heals_no_rank_for_which_batches_wait() -> None:
    followed = following()
    followed.batch(late=9.0)
    followed.rank.received("", followed.sequence + 5, is_all=False)
    followed.now += 60.0
    followed.rank.tick()
    assert followed.level is Level.DEGRADED
    assert followed.rank.lag_batches == 6


def test_a_new_connection_learns_the_difference_between_the_clocks_anew() -> None:
    followed = following()
    followed.batch(late=9.0)
    followed.rank.disconnected()
    followed.rank.connected()
    assert followed.rank.lag_batches == 0
    followed.batch(late=9.0)
    assert BEHIND not in followed.rank.trust.reason


def test_a_restarted_engine_may_have_another_clock() -> None:
    followed = following()
    followed.batch()
    followed.sequence = 0
    followed.ahead -= 50.0
    followed.batch()
    assert followed.rank.counts()["restarts"] == 1
    assert followed.level is Level.EXACT


def test_batches_that_a_replay_holds_up_count_as_lag_in_batches() -> None:
    followed = Followed(has_replay=True)
    for _ in range(3):
        followed.batch(late=9.0)
    assert followed.rank.sequence is None
    assert followed.rank.lag_batches == 3
    assert followed.rank.lag.seconds == 0


def test_a_neighbours_frames_are_no_batches_of_the_rank() -> None:
    followed = Followed(topic="kv")
    followed.rank.live_many([("kv", 0, followed.payload())])
    followed.rank.received("kv2", 10**6, is_all=True)
    followed.now += 99.0
    followed.made += 0.1
    followed.rank.live_many([("kv2", 0, followed.payload())])
    assert followed.rank.lag_batches == 0
    assert followed.level is Level.EXACT


@pytest.mark.parametrize("timestamp", [0.0, -1.0, 1e300, float("nan"), float("inf"), 1.7e12])
def test_a_timestamp_that_is_none_says_nothing(timestamp: float) -> None:
    lag = Lag(BOUND)
    lag.followed(AHEAD, 0, 100.0)
    lag.followed(timestamp, 1, 100.0)
    lag.followed(AHEAD + 1, 2, 101.0)
    assert lag.seconds == 0


def test_a_clock_that_is_set_back_between_two_batches_is_no_lag() -> None:
    followed = following()
    for _ in range(3):
        followed.ahead -= 3600.0
        followed.now += 100.0
        followed.batch()
        followed.batch(late=0.5)
        assert followed.rank.lag.seconds == pytest.approx(0.5)
        followed.batch()


def test_lag_is_seen_over_a_clock_that_is_set_back() -> None:
    lag = Lag(BOUND)
    for sequence in range(50):
        set_back = 100.0 if sequence >= 25 else 0.0
        lag.followed(AHEAD + sequence / 10 - set_back, sequence, 2 * sequence / 10)
    assert lag.seconds == pytest.approx(4.9, abs=0.2)
    assert lag.is_behind


def test_a_clock_that_stands_still_is_no_lag() -> None:
    lag = Lag(BOUND)
    for sequence in range(10):
        lag.followed(AHEAD, sequence, 100.0 * sequence)
    assert lag.seconds == 0


def test_a_clock_that_was_set_ahead_is_no_lag_nor_when_it_is_set_right_again() -> None:
    followed = following()
    for ahead in (3600.0, -3600.0):
        followed.ahead += ahead
        followed.batch()
        followed.batch()
        assert followed.level is Level.EXACT


def test_a_clock_that_was_set_back_in_a_pause_is_lag_for_no_longer_than_two_windows() -> None:
    lag, since, now = Lag(BOUND), 0.0, 0.0
    for sequence in range(200):
        lag.received(sequence, is_all=True)
        lag.followed(AHEAD + now - (30.0 if sequence else 0.0), sequence, now)
        since = now if lag.is_behind else since
        now += 60.0
    assert not lag.is_behind
    assert 0 < since <= 2 * WINDOW_SECONDS


@pytest.mark.parametrize("waiting", [0, 5])
def test_what_is_followed_late_for_hours_never_counts_as_in_time(waiting: int) -> None:
    lag, now = Lag(BOUND), 30.0
    lag.followed(AHEAD, 0, 0.0)
    for sequence in range(1, 1000):
        now += 20.0
        lag.received(sequence + waiting, is_all=False)
        lag.followed(AHEAD + now - 30.0, sequence, now)
        assert lag.is_behind


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), max_size=60), st.floats(1, 1e10))
def test_lag_is_how_much_later_than_the_earliest_batch(
    steps: list[tuple[float, float]], ahead: float
) -> None:
    lag, now, seen, made = Lag(BOUND), 0.0, [], 0.0
    for sequence, (pause, late) in enumerate(steps):
        # In the order in which they were made, and while more waits.
        now = max(now + pause, made + late + 1e-3)
        made = now - late
        seen.append(late)
        lag.received(sequence + 1, is_all=False)
        lag.followed(ahead + 100.0 + made, sequence, now)
        assert lag.seconds == pytest.approx(late - min(seen), abs=1e-3)


def test_a_timestamp_is_read_from_a_batch_and_from_nothing_else() -> None:
    assert timestamp_of(msgspec.msgpack.encode([12.5, [], 0])) == 12.5
    assert timestamp_of(msgspec.msgpack.encode([12.5, []])) == 12.5
    for other in (b"", b"\x93", b"\x93\xcb", b"\x93\xcb\x00\x00", b'{"event_id": 1, "data": {}}'):
        assert timestamp_of(other) == 0
