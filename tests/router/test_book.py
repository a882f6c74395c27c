"""Bookings: what is booked is released, once, whatever is reported or lost."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.book import DECODING_TOKENS, Bookings, Load


def new_bookings(most: int = 100) -> Bookings:
    numbers = count()
    return Bookings(expire_after=10.0, most=most, new_id=lambda: str(next(numbers)))


def test_a_booking_weighs_its_prefill_until_the_first_token_and_little_until_the_end() -> None:
    bookings = new_bookings()
    name = bookings.book("p", 0, uncached=100, cached=28, now=0.0)
    assert bookings.load("p", 0) == Load(100 + DECODING_TOKENS, 1)
    assert bookings.first_token(name)
    assert bookings.first_token(name)
    assert bookings.load("p", 0) == Load(DECODING_TOKENS, 1)
    assert bookings.finish(name)
    assert not bookings.finish(name)
    assert bookings.load("p", 0) == Load(0, 0)


def test_what_is_never_reported_expires() -> None:
    bookings = new_bookings()
    bookings.book("p", 0, uncached=100, cached=0, now=0.0)
    bookings.expire(9.9)
    assert len(bookings) == 1
    bookings.expire(10.0)
    assert len(bookings) == 0
    assert bookings.expired == 1


def test_the_oldest_ends_where_there_are_too_many() -> None:
    bookings = new_bookings(most=2)
    first = bookings.book("p", 0, uncached=1, cached=0, now=0.0)
    bookings.book("p", 0, uncached=1, cached=0, now=0.0)
    bookings.book("p", 0, uncached=1, cached=0, now=0.0)
    assert len(bookings) == 2
    assert not bookings.finish(first)


class AnyReports(RuleBasedStateMachine):
    """Reports in any order, lost ones, and time that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.bookings = new_bookings(most=8)
        self.names: list[str] = ["unknown"]
        self.now = 0.0

    @rule(pod=st.sampled_from("ab"), rank=st.integers(0, 1), tokens=st.integers(0, 99))
    def book(self, pod: str, rank: int, tokens: int) -> None:
        self.names.append(self.bookings.book(pod, rank, uncached=tokens, cached=0, now=self.now))

    @rule(which=st.integers(0, 99), end=st.booleans())
    def report(self, which: int, end: bool) -> None:
        name = self.names[which % len(self.names)]
        if end:
            self.bookings.finish(name)
        else:
            self.bookings.first_token(name)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.bookings.expire(self.now)

    @rule()
    def all_ends(self) -> None:
        self.now += 10.0
        self.bookings.expire(self.now)
        assert len(self.bookings) == 0

    @invariant()
    def sums_agree(self) -> None:
        self.bookings.check()


AnyReports.TestCase.settings = settings(max_examples=100, deadline=None)
TestAnyReports = AnyReports.TestCase
