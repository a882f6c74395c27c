"""What a rank's prefills really take is learned, and no single one of them says much."""

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.book import Booking, Bookings, Work
from router.calibration import FASTEST, LEAST, SLOWEST, Calibration


class Rank:
    """One rank, its bookings and its clock."""

    def __init__(self) -> None:
        numbers = count()
        self.bookings = Bookings(
            expire_after=1e9, most=100, new_id=lambda: str(next(numbers)), late_seconds=1e8
        )
        self.calibration = Calibration()
        self.now = 0.0

    def book(self, predicted: float = 1.0) -> Booking:
        factor = self.factor
        return self.bookings.book(Work("m", "p", 0, 100, 28, predicted * factor, factor), self.now)

    def computed(self, booking: Booking) -> None:
        self.bookings.first_token(booking.id, self.now)
        self.calibration.learn(booking)
        self.calibration.check()

    def run(self, *seconds: float) -> None:
        for one in seconds:
            booking = self.book()
            self.now += one
            self.computed(booking)

    @property
    def factor(self) -> float:
        return self.calibration.factor("p", 0)


def test_nothing_is_said_before_enough_was_seen() -> None:
    rank = Rank()
    rank.run(*[2.0] * (LEAST - 1))
    assert rank.factor == 1.0
    rank.run(2.0)
    assert rank.factor == pytest.approx(2.0)


@given(st.floats(0.3, 3.0), st.lists(st.floats(0.01, 10), min_size=40, max_size=60))
def test_a_steady_ratio_is_found_whatever_the_prefills(ratio: float, lengths: list[float]) -> None:
    rank = Rank()
    for predicted in lengths:
        booking = rank.book(predicted)
        rank.now += ratio * predicted
        rank.computed(booking)
    assert rank.factor == pytest.approx(ratio)


def test_the_factor_in_use_does_not_feed_back() -> None:
    rank = Rank()
    rank.run(*[2.0] * 200)
    assert rank.factor == pytest.approx(2.0)


def test_those_behind_one_another_are_timed_from_one_first_token_to_the_next() -> None:
    rank = Rank()
    waiting = [rank.book() for _ in range(20)]
    for booking in waiting:
        rank.now += 2.0
        rank.computed(booking)
    assert rank.factor == pytest.approx(2.0)


def test_prefills_that_share_a_step_are_neither_slow_nor_for_nothing() -> None:
    rank = Rank()
    for _ in range(30):
        together = [rank.book() for _ in range(4)]
        rank.now += 4.0
        for booking in together:
            rank.computed(booking)
    assert rank.factor == pytest.approx(1.0)


def test_a_pause_between_requests_is_nobodys_prefill() -> None:
    rank = Rank()
    for _ in range(20):
        rank.now += 1000.0
        rank.run(1.0)
    assert rank.factor == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_one_that_is_far_off_moves_little(seconds: float) -> None:
    rank = Rank()
    rank.run(*[1.0] * 40, seconds, *[1.0] * 3)
    assert rank.factor == pytest.approx(1.0, rel=0.06)


def test_a_change_is_learned() -> None:
    rank = Rank()
    rank.run(*[1.0] * 40)
    rank.run(*[3.0] * 200)
    assert rank.factor == pytest.approx(3.0, rel=0.02)


def test_ranks_are_apart_and_are_forgotten() -> None:
    rank = Rank()
    rank.run(*[2.0] * 8)
    assert rank.calibration.factor("p", 1) == 1.0
    rank.calibration.forget("p", 0)
    rank.calibration.forget("never", 0)
    assert rank.factor == 1.0


def test_the_same_report_again_is_no_second_prefill() -> None:
    rank = Rank()
    booking = rank.book()
    rank.now += 5.0
    for _ in range(50):
        rank.computed(booking)
    assert rank.factor == 1.0


def test_what_found_something_else_cached_says_nothing() -> None:
    rank = Rank()
    for _ in range(20):
        booking = rank.book()
        booking.reported(100)
        rank.now += 5.0
        rank.computed(booking)
    assert rank.factor == 1.0


def test_what_has_no_first_token_says_nothing() -> None:
    rank = Rank()
    for _ in range(20):
        booking = rank.book()
        rank.calibration.learn(booking)
        rank.bookings.finish(booking.id, rank.now)
        rank.calibration.learn(booking)
    assert rank.factor == 1.0


def test_what_was_given_up_says_nothing() -> None:
    rank = Rank()
    for _ in range(20):
        booking = rank.book()
        rank.now += 2e8
        rank.computed(booking)
    assert rank.factor == 1.0


@given(st.lists(st.floats(0, 1e6), max_size=80))
def test_a_factor_stays_within_bounds(times: Sequence[float]) -> None:
    rank = Rank()
    rank.run(*times)
    assert FASTEST * 0.999 <= rank.factor <= SLOWEST * 1.001
