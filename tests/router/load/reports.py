"""Reports on bookings, as a router makes them of its callers' words."""

from dataclasses import replace
from itertools import count
from typing import Any

from warmpath.router.load.bookings import Bookings
from warmpath.scorer.candidate import IDLE, Load


def new_bookings(most: int = 1000, expire_after: float = 600.0, **settings: Any) -> Bookings:
    """Return bookings whose ids are 0, 1, 2 and so on."""
    numbers = count()
    return Bookings(
        expire_after=expire_after, most=most, new_id=lambda: str(next(numbers)), **settings
    )


def load_of(bookings: Bookings, pod: str, rank: int, now: float) -> Load:
    """Return the load of a rank by its bookings alone."""
    now = bookings.expire(now)
    book = bookings.ranks.get((pod, rank))
    return IDLE if book is None else book.load(now)


def started_on(
    bookings: Bookings, booking_id: str, now: float, pod: str | None, rank: int = 0
) -> bool:
    booking = bookings.get(booking_id)
    if booking is None or pod is None:
        return bookings.started(booking_id, now)
    return bookings.started(booking_id, now, replace(booking.work, pod=pod, rank=rank))


def report(bookings: Bookings, name: str, what: str, now: float, pod: str | None = None) -> None:
    """Report what became of a booking; one that has started went to `pod`."""
    if what == "started":
        started_on(bookings, name, now, pod)
    elif what == "first":
        bookings.first_token(name, now)
    elif what == "finish":
        bookings.end(name, now)
    elif what == "fail":
        bookings.end(name, now, "failed")
    elif what == "refuse":
        bookings.end(name, now, "refused")
    else:
        bookings.end(name, now, "expired")
