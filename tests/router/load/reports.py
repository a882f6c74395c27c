"""Reports on bookings, as a router makes them of its callers' words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.correction import correct
from warmpath.router.load.other_routers import NOBODY
from warmpath.router.load.rank_bookings import RankBook, wait
from warmpath.router.load.stuck import Ending
from warmpath.router.load.table import LoadTable, copy
from warmpath.scorer.candidate import Load
from warmpath.scorer.columns import LoadColumns


def new_bookings(
    most: int = 1000,
    expire_after: float = 600.0,
    *,
    expects_first_tokens: bool = True,
    **settings: Any,
) -> Bookings:
    """Return bookings, whose ids are 1, 2, 3 and so on, where first tokens are reported or not."""
    bookings = Bookings(expire_after=expire_after, most=most, **settings)
    bookings.overdue.expects_none = not expects_first_tokens
    return bookings


def load_of(bookings: Bookings, pod: str, rank: int, now: float) -> Load:
    """Return the load of a rank by its bookings alone."""
    now = bookings.expire(now)
    book = bookings.ranks.get(RankName(pod, rank), RankBook())
    load, nanoseconds, head, free_since, *_ = correct(book, NOBODY, None)
    return load._replace(wait=wait(nanoseconds, head, free_since, now))


def columns(table: LoadTable, names: Sequence[RankName], now: float) -> LoadColumns:
    """Return the loads of ranks as a pick copies them."""
    loads, rows, now = table.current(names, now)
    figures = np.empty((len(Load._fields), len(names)))
    copy(figures, loads, rows, now)
    return LoadColumns(*figures)


def started_on(
    bookings: Bookings, booking_id: str, now: float, pod: str | None, rank: int = 0
) -> bool:
    booking = bookings.get(booking_id)
    if booking is None or pod is None:
        return bookings.started(booking_id, now)
    return bookings.started(booking_id, now, replace(booking.work, pod=pod, rank=rank))


ENDS: dict[str, Ending] = {
    "finish": "finished",
    "fail": "failed",
    "refuse": "refused",
    "lose": "expired",
}


def report(
    bookings: Bookings, name: str, what: str, now: float, pod: str | None = None, rank: int = 0
) -> None:
    """Report what became of a booking; one that has started went to `pod`."""
    if what == "started":
        started_on(bookings, name, now, pod, rank)
    elif what == "first":
        bookings.first_token(name, now)
    else:
        bookings.end(name, now, ENDS[what])
