"""The sums of other routers' bookings on one rank.

Routers share sums, not bookings, so the size of what a router writes to Redis depends on the fleet and
not on its traffic. Two further figures are shared: when the first waiting request went out, since a rank
computes one prefill at a time for all routers; and the ages of requests in flight, since an engine's
metrics only cover requests that had reached it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from warmpath.router.load.engine_metrics import MOST_REQUESTS
from warmpath.router.load.rank_bookings import Head, RankBook

AGES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Ages in seconds; for each, `RankSums.settled` counts the requests that are at least as old."""

MICROSECONDS = 1_000_000
MOST = (1 << 63) - 1
"""Highest value of a figure; sums are capped at it."""

Count = Annotated[int, Meta(ge=0, le=MOST)]
Requests = Annotated[int, Meta(ge=0, le=MOST_REQUESTS)]
Tokens = Annotated[int, Meta(ge=0, le=1 << 48)]
"""A credible number of tokens: the sums of 4,000 routers still fit into the messages that show them."""


class RankSums(msgspec.Struct, frozen=True, array_like=True):
    """The sums of one router's bookings on one rank, as written to Redis.

    Ages are in microseconds at the time of the write.
    """

    pod: str
    rank: Count
    nanoseconds: Count
    """Predicted prefill of the waiting requests (`RankBook.prefill`)."""
    waiting: Requests
    in_flight: Requests
    uncached_tokens: Tokens
    prompt_tokens: Tokens
    context_tokens: Tokens
    last_pick: Count
    settled: Annotated[list[Count], Meta(min_length=len(AGES), max_length=len(AGES))]
    """For each of `AGES`, the number of requests in flight that went out at least that long ago."""
    head: tuple[Count, Count] | None
    """Age of the first waiting request and its predicted prefill in nanoseconds; None: none waits."""
    free: Count | None
    """Age of the last known end of a prefill; None: no end is known."""
    certain: Count = 0
    """Requests in flight that have not ended, whatever the engine's metrics say
    (`RankBook.certain`); routers before 2026-12 write none."""

    @property
    def is_possible(self) -> bool:
        """Whether the figures are consistent with each other."""
        return (
            self.waiting <= self.in_flight
            and self.uncached_tokens <= self.prompt_tokens <= self.context_tokens
            and self.settled == sorted(self.settled, reverse=True)
            and self.settled[0] <= self.in_flight
            and self.certain <= self.in_flight
            and (self.head is None) == (self.waiting == 0)
            and (self.head is None or self.head[1] <= self.nanoseconds)
            and (self.waiting > 0 or self.nanoseconds == self.prompt_tokens == 0)
        )


def rank_sums(pod: str, rank: int, book: RankBook, now: float) -> RankSums:
    """Return a rank's bookings in the form that other routers read."""
    head = book.head()
    has_been_free = book.free_since > float("-inf")
    return RankSums(
        pod,
        rank,
        min(book.prefill(), MOST),
        len(book.waiting),
        len(book.in_flight),
        book.uncached_tokens,
        book.prompt_tokens,
        book.context_tokens,
        book.last_pick,
        _settled(book, now),
        (_age(head.since, now), min(head.nanoseconds, MOST)) if head else None,
        _age(book.free_since, now) if has_been_free else None,
        book.certain,
    )


def _settled(book: RankBook, now: float) -> list[int]:
    """Return how many bookings are at least as old as each of `AGES`; it visits only recent ones."""
    settled: list[int] = []
    left = len(book.in_flight)
    for booking in reversed(book.in_flight.values()):
        while now - booking.since >= AGES[len(settled)]:
            settled.append(left)
            if len(settled) == len(AGES):
                return settled
        left -= 1
    return settled + [0] * (len(AGES) - len(settled))


def _age(then: float, now: float) -> int:
    return min(max(0, round((now - then) * MICROSECONDS)), MOST)


@dataclass(frozen=True, slots=True)
class OthersBook:
    """The summed bookings of all other routers on one rank. Times are of the reader's clock."""

    nanoseconds: int = 0
    waiting: int = 0
    in_flight: int = 0
    uncached_tokens: int = 0
    prompt_tokens: int = 0
    context_tokens: int = 0
    last_pick: int = 0
    settled: tuple[int, ...] = (0,) * len(AGES)
    certain: int = 0
    received_at: float = float("-inf")
    """Time of the latest of the summed values."""
    head: Head | None = None
    free_since: float = float("-inf")

    def out_by(self, time: float) -> int:
        """Return a lower bound of the number of requests in flight that went out by a time."""
        age = self.received_at - time
        if age <= 0:
            return self.in_flight
        place = bisect_left(AGES, age)
        return self.settled[place] if place < len(AGES) else 0

    def without(self, lost: int) -> "OthersBook":
        """Return the sums without `lost` requests that have ended without a report.

        The lost ones are the oldest: running requests first, then the first waiting ones. As their
        sizes are not known, the mean is subtracted for each.
        """
        if not lost:
            return self
        in_flight = self.in_flight - lost
        waiting = min(self.waiting, in_flight)
        running, ran = in_flight - waiting, self.in_flight - self.waiting
        context = (self.context_tokens - self.prompt_tokens) * running // ran if ran else 0
        if waiting == self.waiting:
            return replace(self, in_flight=in_flight, context_tokens=self.prompt_tokens + context)
        prompt_tokens = self.prompt_tokens * waiting // self.waiting
        return replace(
            self,
            nanoseconds=self.nanoseconds * waiting // self.waiting,
            waiting=waiting,
            in_flight=in_flight,
            uncached_tokens=self.uncached_tokens * waiting // self.waiting,
            prompt_tokens=prompt_tokens,
            context_tokens=prompt_tokens + context,
            head=None,
        )


SUMMED = (
    "nanoseconds", "waiting", "in_flight", "uncached_tokens", "prompt_tokens", "context_tokens",
    "certain",
)  # fmt: skip
"""The names of the figures of `RankSums` that `sum_of` adds up."""
NOBODY = OthersBook()
"""The sums if no other router has bookings."""


def sum_of(sums: Iterable[tuple[RankSums, float]]) -> OthersBook:
    """Return the sums over several routers of one rank; each item has the time when it was received."""
    rows = [*sums]
    if not rows:
        return NOBODY
    heads = [
        Head(at - one.head[0] / MICROSECONDS, one.head[1])
        for one, at in rows
        if one.head is not None
    ]
    return OthersBook(
        **{name: sum(getattr(one, name) for one, _ in rows) for name in SUMMED},
        last_pick=max(one.last_pick for one, _ in rows),
        settled=tuple(map(sum, zip(*(one.settled for one, _ in rows), strict=True))),
        received_at=max(at for _, at in rows),
        head=min(heads, default=None),
        free_since=max(
            (at - one.free / MICROSECONDS for one, at in rows if one.free is not None),
            default=float("-inf"),
        ),
    )
