"""First tokens that nobody reports: how many are too many, and until when."""

from itertools import count

import pytest

from router.load.bookings import Bookings, Work
from router.load.silence import Silence


@pytest.mark.parametrize(("every", "expects_none"), [(2, True), (10, True), (100, False)])
def test_a_steady_share_of_unreported_first_tokens_settles_the_question(
    every: int, expects_none: bool
) -> None:
    silence = Silence(expects_first_tokens=True)
    answers = []
    for number in range(1, 2000):
        silence.count(reported=number % every != 0)
        answers.append(silence.expects_none)
    assert set(answers[500:]) == {expects_none}


def test_where_reports_come_again_the_router_waits_for_them_again() -> None:
    silence = Silence(expects_first_tokens=True)
    for reported in (False,) * 100 + (True,) * 300:
        silence.count(reported=reported)
    assert not silence.expects_none


def test_requests_that_nothing_is_reported_of_count_long_before_they_expire() -> None:
    numbers = count()
    bookings = Bookings(expire_after=600.0, most=1000, new_id=lambda: str(next(numbers)))
    hears = []
    for second in range(300):
        one = bookings.book(Work("m", "p", 0, 100, 0, 0.5), float(second))
        if second % 10:
            bookings.first_token(one.id, second + 0.5)
            bookings.finish(one.id, second + 0.6)
        bookings.check()
        hears.append(bookings.hears_first_tokens)
    assert True in hears[:40]
    assert set(hears[60:]) == {False}, "though nothing has expired"
    assert bookings.expired == 0


def test_a_request_counts_once_though_its_report_is_lost_and_it_expires_later() -> None:
    numbers = count()
    bookings = Bookings(expire_after=600.0, most=1000, new_id=lambda: str(next(numbers)))
    for _ in range(100):
        one = bookings.book(Work("m", "p", 0, 100, 0, 0.5), 0.0)
        bookings.first_token(one.id, 0.5)
    bookings.book(Work("m", "p", 0, 100, 0, 0.5), 0.0)
    bookings.expire(1000.0)
    assert bookings.unreported == 1
    assert bookings.hears_first_tokens
