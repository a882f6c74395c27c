"""Bookings: what is booked is released, once, whatever is reported or lost."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.load.reports import load_of, new_bookings, report
from warmpath.router.load.bookings import Bookings, Work
from warmpath.router.load.stuck import ENOUGH
from warmpath.scorer.candidate import Load


def work(
    prefill: float = 1.0, pod: str = "p", rank: int = 0, tokens: int = 100, cached: int = 28
) -> Work:
    return Work("m", pod, rank, tokens, cached, prefill)


def test_a_booking_weighs_its_prefill_until_the_first_token_and_its_context_until_the_end() -> None:
    bookings = new_bookings()
    booking = bookings.book(work(2.0), 0.0)
    assert load_of(bookings, "p", 0, 0.0) == Load(2.0, 1, 1, 72, 100, 100, last_pick=1)
    assert bookings.first_token(booking.id, 1.0)
    assert bookings.first_token(booking.id, 1.0)
    assert load_of(bookings, "p", 0, 1.0) == Load(in_flight=1, context_tokens=100, last_pick=1)
    assert bookings.end(booking.id, 2.0)
    assert not bookings.end(booking.id, 2.0)
    assert load_of(bookings, "p", 0, 2.0) == Load(last_pick=1)
    assert load_of(bookings, "p", 1, 2.0) == Load()


def test_the_first_waiting_request_counts_whole_and_the_others_without_the_part_that_they_share() -> (
    None
):
    bookings = new_bookings()
    names = [bookings.book(replace(work(1.0), shared=0.25 * part), 0.0).id for part in (1, 2, 3, 4)]
    assert load_of(bookings, "p", 0, 0.0).wait == 1.0 + 0.5 + 0.25 + 0.0
    bookings.first_token(names[1], 0.0)
    assert load_of(bookings, "p", 0, 0.0).wait == 1.0 + 0.25 + 0.0
    bookings.end(names[0], 0.0)
    assert load_of(bookings, "p", 0, 0.0).wait == 1.0 + 0.0


def test_reports_on_what_is_not_known_say_so() -> None:
    bookings = new_bookings()
    assert not bookings.started("x", 0.0)
    assert not bookings.first_token("x", 0.0)
    assert not bookings.end("x", 0.0)
    assert not bookings.end("x", 0.0, "failed")
    assert bookings.get("x") is None


@pytest.mark.parametrize(("fails", "wait"), [(1, 1.0), (0, 4.0)])
def test_a_failure_gives_the_next_one_its_turn_and_starts_no_head_again(
    fails: int, wait: float
) -> None:
    bookings = new_bookings()
    names = [bookings.book(work(prefill), 0.0).id for prefill in (2.0, 4.0)]
    assert bookings.end(names[fails], 1.0, "failed")
    assert load_of(bookings, "p", 0, 1.0).wait == pytest.approx(wait)


def test_what_starts_later_queues_behind_what_started_before() -> None:
    bookings = new_bookings()
    held = bookings.book(work(8.0), 0.0)
    bookings.book(work(2.0), 0.0)
    assert bookings.started(held.id, 1.0)
    assert load_of(bookings, "p", 0, 1.0).wait == pytest.approx(1.0 + 8.0)
    assert bookings.started(held.id, 2.0), "said again, it is no second start"
    assert held.since == 1.0
    check(bookings)


def test_a_first_token_that_is_long_overdue_waits_no_longer() -> None:
    bookings = new_bookings()
    booking = bookings.book(work(2.0), 0.0)
    assert load_of(bookings, "p", 0, 37.9).waiting == 1
    assert load_of(bookings, "p", 0, 38.0) == Load(in_flight=1, context_tokens=100, last_pick=1)
    assert bookings.first_token(booking.id, 40.0), "it may still be told"
    assert bookings.end(booking.id, 41.0)
    assert bookings.unreported == 0


def test_what_is_behind_a_long_queue_is_not_overdue_before_its_turn() -> None:
    bookings = new_bookings()
    first = bookings.book(work(20.0), 0.0)
    bookings.book(work(2.0), 0.0)
    bookings.first_token(first.id, 100.0)
    assert load_of(bookings, "p", 0, 117.0).waiting == 1
    assert load_of(bookings, "p", 0, 118.0).waiting == 0


def tell(bookings: Bookings, prefills: int, now: float) -> None:
    for _ in range(prefills):
        booking = bookings.book(work(pod="told"), now)
        bookings.first_token(booking.id, now)
        bookings.end(booking.id, now)


def test_where_first_tokens_are_never_reported_a_prefill_is_over_when_predicted() -> None:
    bookings = new_bookings()
    for _ in range(3):
        ended = bookings.book(work(2.0), 0.0)
        bookings.end(ended.id, 1.0)
    assert bookings.unreported == 3
    bookings.book(work(2.0), 10.0)
    bookings.book(work(4.0), 10.0)
    assert load_of(bookings, "p", 0, 11.9).waiting == 2
    assert load_of(bookings, "p", 0, 12.0).waiting == 1
    assert load_of(bookings, "p", 0, 15.9).waiting == 1
    assert load_of(bookings, "p", 0, 16.0) == Load(in_flight=2, context_tokens=200, last_pick=5)


def test_when_first_tokens_cease_to_be_reported_those_that_are_due_wait_no_longer() -> None:
    bookings = new_bookings()
    tell(bookings, 50, 0.0)
    for pod in "abcd":
        bookings.book(work(2.0, pod), 0.0)
    assert load_of(bookings, "d", 0, 30.0).waiting == 1
    silent = [bookings.book(work(2.0, "p"), 30.0) for _ in range(3)]
    for booking in silent:
        bookings.end(booking.id, 31.0)
    assert load_of(bookings, "d", 0, 31.0).waiting == 0


def test_where_first_tokens_are_reported_an_engine_that_hangs_is_not_taken_for_idle() -> None:
    bookings = new_bookings()
    tell(bookings, 50, 0.0)
    bookings.book(work(2.0), 0.0)
    ended = bookings.book(work(2.0, "q"), 0.0)
    bookings.end(ended.id, 1.0)
    assert load_of(bookings, "p", 0, 37.0).waiting == 1, "one that does not stream changes nothing"


def test_a_failed_request_has_no_first_token_to_report() -> None:
    bookings = new_bookings()
    for _ in range(9):
        bookings.end(bookings.book(work(), 0.0).id, 0.0, "failed")
    assert bookings.unreported == 0
    bookings.book(work(2.0), 0.0)
    assert load_of(bookings, "p", 0, 30.0).waiting == 1


def test_the_oldest_ends_where_there_are_too_many() -> None:
    bookings = new_bookings(most=2)
    first = bookings.book(work(), 0.0)
    bookings.book(work(), 0.0)
    bookings.book(work(), 0.0)
    assert len(bookings) == 2
    assert not bookings.end(first.id, 0.0)


def test_ranks_that_nobody_says_are_gone_are_not_kept_for_ever() -> None:
    bookings = new_bookings(most=3)
    for number in range(20):
        booking = bookings.book(work(pod=f"p{number}"), float(number))
        bookings.end(booking.id, float(number))
        check(bookings)


def test_reports_that_overtake_one_another_do_not_set_the_clock() -> None:
    bookings = new_bookings(expire_after=10.0)
    booking = bookings.book(work(4.0), 5.0)
    bookings.first_token(booking.id, 4.5)
    assert booking.first_token_at == 5.0


@pytest.mark.parametrize(
    ("name", "figures", "problem"),
    [
        ("prefill", [-1.0, math.nan, math.inf], "prefill is"),
        ("shared", [-0.1, 1.1, math.nan], "shared is"),
        ("cached", [101], "cached is 101, not 0 to 100"),
    ],
)
def test_impossible_figures_are_refused(name: str, figures: list[float], problem: str) -> None:
    bookings = new_bookings()
    for figure in figures:
        with pytest.raises(ValueError, match=problem):
            bookings.book(replace(work(), **{name: figure}), 0.0)  # type: ignore[arg-type]
    assert len(bookings) == 0


class StudysQueue:
    """The wait as the policy study's simulator estimates it (`wait_s` of its policies.py), one pod."""

    def __init__(self) -> None:
        self.fifo: deque[tuple[str, float]] = deque()
        self.head = 0.0

    def sent(self, name: str, seconds: float, now: float) -> None:
        if not self.fifo:
            self.head = now
        self.fifo.append((name, seconds))

    def first(self, name: str, now: float) -> None:
        self.fifo = deque(one for one in self.fifo if one[0] != name)
        self.head = now

    def wait(self, now: float) -> float:
        if not self.fifo:
            return 0.0
        head = self.fifo[0][1]
        rest = sum(seconds for _, seconds in self.fifo) - head
        return rest + max(head - (now - self.head), 0.15 * head)


STEPS = st.lists(
    st.tuples(
        st.floats(0, 0.9),
        st.one_of(st.floats(0.001, 5).map(lambda s: ("book", s)), st.just(("first", 0.0))),
    ),
    max_size=40,
)  # fmt: skip


@given(STEPS)
def test_the_wait_is_the_studys(steps: Iterable[tuple[float, tuple[str, float]]]) -> None:
    bookings, study, now, names = new_bookings(), StudysQueue(), 0.0, list[str]()
    for passed, (what, value) in steps:
        now += passed
        if what == "book":
            names.append(bookings.book(work(value), now).id)
            study.sent(names[-1], value, now)
        elif names:
            name = names.pop(int(value) % len(names))
            bookings.first_token(name, now)
            study.first(name, now)
        assert load_of(bookings, "p", 0, now).wait == pytest.approx(study.wait(now), abs=1e-6)


PODS = st.sampled_from("ab")
RANKS = st.integers(0, 1)
REPORTS = st.sampled_from(
    ["started", "started anew", "first", "first", "finish", "fail", "refuse", "lose"]
)


class AnyReports(RuleBasedStateMachine):
    """Reports in any order, by gateways of both kinds, lost ones, pods that go, and time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.bookings = new_bookings(most=8, expects_first_tokens=False)
        self.names: list[str] = ["unknown"]
        self.now = 1000.0
        self.picks = 0
        for _ in range(ENOUGH):
            name = self.bookings.book(work(pod="d"), self.now, is_watched=True).id
            self.bookings.first_token(name, self.now)
            self.bookings.end(name, self.now)

    @rule(
        pod=PODS, rank=RANKS, seconds=st.floats(0, 50), tokens=st.integers(0, 99),
        is_watched=st.booleans(),
    )  # fmt: skip
    def book(self, pod: str, rank: int, seconds: float, tokens: int, is_watched: bool) -> None:
        what = work(seconds, pod, rank, tokens, cached=tokens // 3)
        self.names.append(self.bookings.book(what, self.now, is_watched=is_watched).id)
        picks = load_of(self.bookings, pod, rank, self.now).last_pick
        assert picks > self.picks
        self.picks = picks

    @rule(which=st.integers(0, 12), what=REPORTS, pod=st.none() | PODS, rank=RANKS)
    def report(self, which: int, what: str, pod: str | None, rank: int) -> None:
        name = self.names[-1 - which % len(self.names)]
        was_known = self.bookings.get(name) is not None
        if what == "started anew":
            there = work(3.0, pod or "c", rank)
            known = self.bookings.started(name, self.now, there)
            assert known == (self.bookings.get(name) is not None)
        else:
            report(self.bookings, name, what, self.now, pod, rank)
        is_known = self.bookings.get(name) is not None
        assert is_known <= (was_known and what not in {"finish", "fail", "refuse", "lose"})

    @rule(pod=PODS, rank=RANKS, is_gone=st.booleans())
    def engine_ends(self, pod: str, rank: int, is_gone: bool) -> None:
        if is_gone:
            self.bookings.forget(pod, rank)
        else:
            self.bookings.engine_ended(pod, rank)

    @rule(seconds=st.one_of(st.floats(-1, 2), st.floats(0, 100), st.floats(0, 700)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.bookings.expire(self.now)

    @rule()
    def nothing_is_ever_reported_again(self) -> None:
        self.now += 601.0
        self.bookings.expire(self.now)
        assert len(self.bookings) == 0

    @invariant()
    def loads_are_possible_and_sums_agree(self) -> None:
        for pod, rank in [*self.bookings.ranks]:
            load = load_of(self.bookings, pod, rank, self.now)
            assert load.wait >= 0
            assert load.waiting <= load.in_flight
            assert load.waiting_uncached_tokens <= load.waiting_prompt_tokens <= load.context_tokens
            assert (load.wait > 0) <= (load.waiting > 0)
        check(self.bookings)

    @invariant()
    def who_answers_last_is_not_stuck(self) -> None:
        now = self.bookings.expire(self.now)
        for name, book in self.bookings.ranks.items():
            seconds = self.bookings.stuck.seconds(name, now)
            assert seconds >= 0
            if seconds:
                assert book.answered_at <= now - seconds + 1e-6

    def teardown(self) -> None:
        for name in self.names:
            self.bookings.end(name, self.now)
        check(self.bookings)
        assert len(self.bookings) == 0
        for pod in "abc":
            for rank in range(2):
                load = load_of(self.bookings, pod, rank, self.now)
                assert load == Load(last_pick=load.last_pick)


AnyReports.TestCase.settings = settings(max_examples=examples(200), deadline=None)
TestAnyReports = AnyReports.TestCase
