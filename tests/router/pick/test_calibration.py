"""What a rank's prefills really take is learned, and no single one of them says much."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.consistent import check
from tests.router.load.reports import new_bookings
from tests.router.pick.picker_parts import factors_of
from warmpath.router.load import overdue
from warmpath.router.load.bookings import Booking, Work
from warmpath.router.pick.calibration import (
    FASTEST,
    LEAST,
    LEAST_SUMMED,
    SLOWEST,
    USUAL_SHARING,
    Calibration,
)

BASE = 0.02
"""Seconds of a prefill that its length does not change."""


@pytest.fixture(autouse=True)
def no_report_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "LATE_SECONDS", 1e8)


class Ranks:
    """Ranks whose first tokens come as a test says, their bookings and their clock."""

    def __init__(self, *, expects_first_tokens: bool = True) -> None:
        self.bookings = new_bookings(expire_after=1e9, expects_first_tokens=expects_first_tokens)
        self.calibration = Calibration(BASE)
        self.now = 0.0

    def book(self, predicted: float = 1.0, pod: str = "p") -> Booking:
        [factor] = self.factors(pod)
        work = Work("m", pod, 0, 100, 28, predicted * factor, factor)
        return self.bookings.book(work, self.now)

    def computed(self, booking: Booking) -> None:
        self.bookings.first_token(booking.id, self.now)
        self.calibration.first_token(booking)
        self.calibration.learn(booking)
        check(self.calibration)

    def run(self, *seconds: float, pod: str = "p") -> None:
        """Compute one request at a time."""
        for one in seconds:
            booking = self.book(pod=pod)
            self.now += one
            self.computed(booking)
            self.bookings.end(booking.id, self.now)

    def factors(self, pods: str, model: str = "m") -> list[float]:
        return factors_of(self.calibration, model, pods)

    @property
    def factor(self) -> float:
        [factor] = self.factors("p")
        return factor


ENOUGH = LEAST * LEAST_SUMMED + 1
"""Prefills, each in a step of its own, after which a rank's factor is known: the last one shows that the
step before it has ended."""


def test_nothing_is_said_before_enough_was_seen() -> None:
    rank = Ranks()
    rank.run(*[2.0] * (ENOUGH - 1))
    assert rank.factor == 1.0
    rank.run(2.0)
    assert rank.factor == pytest.approx(2.0)


@given(st.floats(0.3, 3.0), st.lists(st.floats(0.01, 10), min_size=40, max_size=60))
def test_a_steady_ratio_is_found_whatever_the_prefills(ratio: float, lengths: list[float]) -> None:
    rank = Ranks()
    for predicted in lengths:
        booking = rank.book(predicted)
        rank.now += ratio * predicted
        rank.computed(booking)
    assert rank.factor == pytest.approx(ratio)


def test_those_behind_one_another_are_timed_from_one_first_token_to_the_next() -> None:
    rank = Ranks()
    waiting = [rank.book() for _ in range(20)]
    for booking in waiting:
        rank.now += 2.0
        rank.computed(booking)
    assert rank.factor == pytest.approx(2.0)


@pytest.mark.parametrize("number", [4, 64])
@pytest.mark.parametrize("own", [0.001, 1.0])
def test_prefills_that_share_a_step_are_neither_slow_nor_for_nothing(
    number: int, own: float
) -> None:
    rank = Ranks()
    for _ in range(30):
        together = [rank.book(BASE + own) for _ in range(number)]
        rank.now += 2 * (BASE + number * own)
        for booking in together:
            rank.computed(booking)
    assert rank.factor == pytest.approx(2.0)


@pytest.mark.parametrize("apart", [0.0, 0.001])
def test_steps_are_those_of_the_first_tokens_in_whatever_order_requests_end(apart: float) -> None:
    rank, rng = Ranks(), Random(1)
    running = []
    for number in range(200):
        together = [rank.book(BASE + 0.02) for _ in range(64 if number % 2 else 1)]
        rank.now += 2 * (BASE + len(together) * 0.02)
        for booking in together:
            rank.bookings.first_token(booking.id, rank.now)
            rank.calibration.first_token(booking)
            rank.now += apart
        running += together
        rng.shuffle(running)
        for booking in running[50:]:
            rank.calibration.learn(booking)
            rank.bookings.end(booking.id, rank.now)
        del running[50:]
        check(rank.calibration)
    assert rank.factor == pytest.approx(2.0, rel=0.1)


def test_a_step_of_which_one_request_says_nothing_says_nothing() -> None:
    rank = Ranks()
    for _ in range(30):
        together = [rank.book(BASE + 0.02) for _ in range(4)]
        rank.now += 2 * (BASE + 4 * 0.02)
        for booking in together:
            rank.bookings.first_token(booking.id, rank.now)
            rank.calibration.first_token(booking)
        for booking in together:
            rank.calibration.learn(booking, is_measured=booking is not together[0])
        check(rank.calibration)
    assert rank.factor == 1.0


def test_an_engine_that_computes_prompts_together_shares_the_fixed_part() -> None:
    rank = Ranks()
    for _ in range(30):
        together = [rank.book(BASE + 0.001) for _ in range(5)]
        rank.now += BASE + 5 * 0.001
        for booking in together:
            rank.computed(booking)
    assert rank.calibration.shared("m") == pytest.approx(BASE, rel=0.05)


def test_an_engine_that_computes_one_prompt_at_a_time_shares_nothing() -> None:
    rank = Ranks()
    for _ in range(40):
        for booking in [rank.book(BASE + 0.001) for _ in range(5)]:
            rank.now += BASE + 0.001
            rank.computed(booking)
    assert rank.calibration.shared("m") < 0.1 * BASE


def test_neither_lone_nor_long_prefills_say_how_much_is_shared() -> None:
    rank = Ranks()
    rank.run(*[BASE] * 50)
    for booking in [rank.book(1.0) for _ in range(50)]:
        rank.now += 1.0
        rank.computed(booking)
    assert rank.calibration.shared("m") == USUAL_SHARING * BASE
    assert rank.calibration.shared("another model") == USUAL_SHARING * BASE


def test_what_was_taken_for_come_too_early_is_timed_from_its_turn() -> None:
    rank = Ranks(expects_first_tokens=False)
    for _ in range(20):
        # The gateway streams one answer of three, and the engine is half as fast as it is said to be.
        together = [rank.book() for _ in range(3)]
        for number, booking in enumerate(together):
            rank.now += 2.0
            if number == 0:
                rank.computed(booking)
        for booking in together:
            rank.bookings.end(booking.id, rank.now)
        rank.now += 10.0
    assert rank.factor == pytest.approx(2.0)


def test_a_pause_between_requests_is_nobodys_prefill() -> None:
    rank = Ranks()
    for _ in range(20):
        rank.now += 1000.0
        rank.run(1.0)
    assert rank.factor == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_one_that_is_far_off_moves_little(seconds: float) -> None:
    rank = Ranks()
    rank.run(*[1.0] * 40, seconds, *[1.0] * 3)
    assert rank.factor == pytest.approx(1.0, rel=0.06)


def test_a_change_is_learned() -> None:
    rank = Ranks()
    rank.run(*[1.0] * 40)
    rank.run(*[3.0] * 200)
    assert rank.factor == pytest.approx(3.0, rel=0.02)


def test_ranks_are_apart_and_are_forgotten() -> None:
    rank = Ranks()
    rank.run(*[2.0] * ENOUGH)
    assert rank.factors("p", "other") == [1.0]
    rank.calibration.forget("p", 0)
    rank.calibration.forget("never", 0)
    assert rank.factor == 1.0


def test_the_same_report_again_is_no_second_prefill() -> None:
    rank = Ranks()
    booking = rank.book()
    rank.now += 5.0
    for _ in range(50):
        rank.computed(booking)
    assert rank.factor == 1.0


@pytest.mark.parametrize(("cached", "seconds"), [(100, 5.0), (None, 2e8)])
def test_what_found_something_else_cached_or_was_given_up_says_nothing(
    cached: int | None, seconds: float
) -> None:
    rank = Ranks()
    for _ in range(20):
        booking = rank.book()
        booking.actual_cached = cached
        rank.now += seconds
        rank.computed(booking)
    assert rank.factor == 1.0


def test_what_has_no_first_token_says_nothing() -> None:
    rank = Ranks()
    for _ in range(20):
        booking = rank.book()
        rank.calibration.learn(booking)
        rank.bookings.end(booking.id, rank.now)
        rank.calibration.learn(booking)
    assert rank.factor == 1.0


@given(st.lists(st.floats(0, 1e6), max_size=80))
def test_a_factor_stays_within_bounds(times: Sequence[float]) -> None:
    rank = Ranks()
    rank.run(*times)
    assert FASTEST * 0.999 <= rank.factor <= SLOWEST * 1.001


def test_a_rank_that_was_not_measured_has_the_factor_that_is_usual_for_its_model() -> None:
    fleet = Ranks()
    fleet.run(*[0.5] * ENOUGH, pod="a")
    assert fleet.factors("abc") == pytest.approx([0.5] * 3)
    assert fleet.factors("b", "another model") == [1.0]


def test_ranks_that_differ_by_a_few_per_cent_are_alike() -> None:
    fleet = Ranks()
    for _ in range(30):
        for number, pod in enumerate("abcd"):
            fleet.run(*[1.0 + 0.05 * number] * 4, pod=pod)
    assert len(set(fleet.factors("abcde"))) == 1


def test_ranks_that_differ_by_chance_are_alike() -> None:
    fleet, rng = Ranks(), Random(1)
    apart = 0
    for _ in range(100):
        for pod in "abcd":
            fleet.run(*(rng.lognormvariate(0, 0.5) for _ in range(4)), pod=pod)
        apart += len(set(fleet.factors("abcd"))) > 1
    assert apart <= 5


def test_a_rank_that_is_of_another_kind_stands_out_and_moves_no_other() -> None:
    fleet, rng = Ranks(), Random(2)
    for _ in range(20):
        for pod in "abcd":
            speed = 3.0 if pod == "d" else 1.0
            fleet.run(*(speed * rng.uniform(0.8, 1.2) for _ in range(4)), pod=pod)
    assert fleet.factors("abcd") == pytest.approx([1.0, 1.0, 1.0, 3.0], rel=0.1)


def test_a_rank_that_looked_slow_is_tried_again_once_others_were_measured_often() -> None:
    fleet = Ranks()
    for _ in range(20):
        for pod in "abcd":
            fleet.run(*[2.0 if pod == "d" else 1.0] * 4, pod=pod)
    usual, slow = fleet.factors("ad")
    assert slow > 1.8 * usual
    for _ in range(400):
        for pod in "abc":
            fleet.run(*[1.0] * 4, pod=pod)
    assert len(set(fleet.factors("ad"))) == 1
    fleet.run(*[2.0] * 20, pod="d")
    usual, slow = fleet.factors("ad")
    assert slow > 1.8 * usual


def test_a_pod_that_goes_leaves_nothing_in_what_is_usual() -> None:
    fleet = Ranks()
    fleet.run(*[2.0] * ENOUGH, pod="a")
    fleet.run(*[4.0] * ENOUGH, pod="b")
    fleet.calibration.forget("b", 0)
    check(fleet.calibration)
    assert fleet.factors("c") == pytest.approx([2.0])
    fleet.calibration.forget("a", 0)
    assert fleet.factors("c") == [1.0]
