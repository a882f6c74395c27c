"""First tokens that nobody reports: how many are too many, until when; which prompts may go first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.consistent import check
from tests.router.load.reports import load_of, new_bookings
from tests.router.pick.picker_parts import Parts, SizedPrompt
from warmpath.router.config.schema import QueueTable
from warmpath.router.load import overdue
from warmpath.router.load.bookings import Bookings, Work
from warmpath.router.load.overdue import FIRST_COME, Overdue, Precedence
from warmpath.router.pick.picking import precedence_of
from warmpath.router.queue.standing import engine_priority


@pytest.mark.parametrize(("every", "expects_none"), [(2, True), (10, True), (100, False)])
def test_a_steady_share_of_unreported_first_tokens_settles_the_question(
    every: int, expects_none: bool
) -> None:
    silence = awaiting()
    answers = []
    for number in range(1, 2000):
        silence.count(reported=number % every != 0)
        answers.append(silence.expects_none)
    assert set(answers[500:]) == {expects_none}


def awaiting() -> Overdue:
    return Overdue(lambda: None)


def test_where_reports_come_again_the_router_waits_for_them_again() -> None:
    silence = awaiting()
    for reported in (False,) * 100 + (True,) * 300:
        silence.count(reported=reported)
    assert not silence.expects_none


def test_requests_that_nothing_is_reported_of_count_long_before_they_expire() -> None:
    bookings = new_bookings()
    hears = []
    for second in range(300):
        one = bookings.book(Work("m", "p", 0, 100, 0, 0.5), float(second))
        if second % 10:
            bookings.first_token(one.id, second + 0.5)
            bookings.end(one.id, second + 0.6)
        check(bookings)
        hears.append(bookings.hears_first_tokens)
    assert True in hears[:40]
    assert set(hears[60:]) == {False}, "though nothing has expired"
    assert bookings.expired == 0


def test_a_request_counts_once_though_its_report_is_lost_and_it_expires_later() -> None:
    bookings = new_bookings()
    for _ in range(100):
        one = bookings.book(Work("m", "p", 0, 100, 0, 0.5), 0.0)
        bookings.first_token(one.id, 0.5)
    bookings.book(Work("m", "p", 0, 100, 0, 0.5), 0.0)
    bookings.expire(1000.0)
    assert bookings.unreported == 1
    assert bookings.hears_first_tokens


def _three_requests() -> tuple[Bookings, list[str]]:
    """Return bookings with three requests, whose first tokens are predicted at 1, 2 and 3 s."""
    bookings = new_bookings()
    return bookings, [bookings.book(Work("m", "p", 0, 100, 0, 1.0), 0.0).id for _ in range(3)]


def test_an_overdue_first_token_that_two_later_requests_have_is_lost() -> None:
    bookings, [_, second, third] = _three_requests()
    bookings.first_token(second, 2.0)
    assert load_of(bookings, "p", 0, 2.0).waiting == 2
    bookings.first_token(third, 3.0)
    assert load_of(bookings, "p", 0, 3.0).waiting == 0, "its prefill must be over"
    assert not bookings.hears_first_tokens, "one of three is lost"
    check(bookings)


@pytest.mark.parametrize(
    ("second_at", "third_at"), [(2.0, 2.9), (0.0, 0.9)], ids=["within a second", "not overdue"]
)
def test_reports_may_overtake_one_another_for_a_moment(second_at: float, third_at: float) -> None:
    bookings, [first, second, third] = _three_requests()
    bookings.first_token(second, second_at)
    bookings.first_token(third, third_at)
    assert load_of(bookings, "p", 0, third_at).waiting == 1
    bookings.first_token(first, third_at)
    assert bookings.hears_first_tokens


def test_short_prompts_may_pass_a_long_one_for_as_long_as_the_queues_order_lets_them() -> None:
    bookings = new_bookings()
    bookings.book(Work("m", "p", 0, 100, 0, 5.0), 0.0)
    for at in (10.0, 40.0):
        passing = bookings.book(Work("m", "p", 0, 100, 0, 0.5), at)
        bookings.first_token(passing.id, at + 2.0)
    assert load_of(bookings, "p", 0, 43.0).waiting == 1
    for at in (46.0, 48.0):
        later = bookings.book(Work("m", "p", 0, 100, 0, 0.5), at)
        bookings.first_token(later.id, at + 0.5)
    assert load_of(bookings, "p", 0, 49.0).waiting == 0


@pytest.mark.parametrize(("times", "waits_until"), [(0.0, 50.0), (30.0, 150.0)])
def test_engines_that_favour_short_prompts_more_let_them_pass_for_longer(
    monkeypatch: pytest.MonkeyPatch, times: float, waits_until: float
) -> None:
    # So late that nothing is overdue of itself.
    monkeypatch.setattr(overdue, "LATE_SECONDS", 500.0)
    bookings = new_bookings()
    bookings.overdue.precedence = Precedence(times)
    bookings.book(Work("m", "p", 0, 100, 0, 5.0), 0.0)
    for at in range(10, 200, 2):
        passing = bookings.book(Work("m", "p", 0, 100, 0, 0.0), at)
        bookings.first_token(passing.id, at)
        # The second one that comes after it in both orders decides.
        assert load_of(bookings, "p", 0, at).waiting == (at < waits_until + 2)


def test_a_report_that_comes_after_it_counted_as_lost_counts_after_all() -> None:
    bookings, [first, second, third] = _three_requests()
    bookings.first_token(second, 2.0)
    bookings.first_token(third, 3.0)
    assert bookings.first_token(first, 4.0)
    # Of 51 first tokens one is too few.
    for _ in range(48):
        one = bookings.book(Work("m", "p", 0, 100, 0, 1.0), 4.0).id
        bookings.first_token(one, 4.0)
    assert bookings.hears_first_tokens


def test_presumed_first_tokens_are_found_lost_as_early_so_that_silence_lasts() -> None:
    bookings = new_bookings()
    hears = []
    for second in range(0, 400, 2):
        one = bookings.book(Work("m", "p", 0, 100, 0, 0.5), float(second))
        if second % 20:
            bookings.first_token(one.id, second + 0.5)
            bookings.end(one.id, second + 0.6)
        hears.append(bookings.hears_first_tokens)
    assert False in hears[:15], "long before 30 s have passed"
    assert set(hears[15:]) == {False}


SECONDS = st.floats(0.0, 1e4)


@given(st.floats(0.0, 100.0), SECONDS, SECONDS, SECONDS, SECONDS)
def test_nobody_goes_before_one_that_arrived_more_than_the_bound_earlier(
    times: float, bound: float, prefill: float, later_prefill: float, later: float
) -> None:
    order = Precedence(times, bound)
    if later > bound:
        assert order.place(0.0, prefill) < order.place(later, later_prefill)


def test_a_shorter_prompt_goes_first_for_as_many_seconds_as_it_is_shorter_times_a_factor() -> None:
    order = Precedence(10.0, 60.0)
    assert order.place(0.0, 3.0) > order.place(19.9, 1.0)
    assert order.place(0.0, 3.0) < order.place(20.1, 1.0)
    assert FIRST_COME.place(0.0, 3.0) < FIRST_COME.place(0.1, 1.0)


@pytest.mark.parametrize(("bound", "milliseconds"), [(2.0, 2_000), (1e6, None)])
def test_an_engines_priority_is_the_place_in_milliseconds(
    bound: float, milliseconds: int | None
) -> None:
    parts = Parts(pods=1)
    placed = parts.picker.reserve(parts.ask(prompt=SizedPrompt(20_000)), parts.now)
    prefill, _ = placed.choice.options.cheapest()
    after = milliseconds or round(1000 * 10.0 * prefill)
    assert after == milliseconds or after > 2_000
    assert engine_priority(placed, Precedence(10.0, bound), 5.0) == 1_005_000 + after


def test_a_router_orders_by_its_configured_keys() -> None:
    assert precedence_of(QueueTable(prefill_times=3.0, passed_seconds=4.0)) == Precedence(3.0, 4.0)
    assert Parts(pods=1).picker.precedence == Precedence(10.0, 60.0) == precedence_of(QueueTable())
