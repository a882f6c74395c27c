"""A rank's load: our own bookings, corrected by what its engine or a gateway said last.

What we booked after an observation is known to us alone, so bookings are the base. A fresh observation
corrects them for what was booked before it:

- it counts more requests than we had there: the surplus is somebody else's, another router's for one;
- it counts fewer: our oldest are over, and their reports were lost.

A request takes a moment to reach its engine, so the youngest bookings before an observation (`slack`)
may or may not be among those it counts: they are taken for neither surplus nor lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from indexer.index import BrokenInvariantError
from router.book import Bookings
from router.engine_load import Observed
from router.rank_book import NANOSECONDS, Booking, RankBook
from scorer.candidate import Load
from scorer.prefill import PrefillModel

Source = Literal["engine", "gateway"]

UNKNOWN_TOKENS = 2048
"""Of a prompt that somebody else sent, where we have none there to go by; none of it cached."""

NOTHING = RankBook()
"""What is booked where nothing is."""


@dataclass(frozen=True, slots=True)
class Typical:
    """What somebody else's request is taken to cost."""

    nanoseconds: int = round(PrefillModel().seconds(UNKNOWN_TOKENS, 0) * NANOSECONDS)
    uncached_tokens: int = UNKNOWN_TOKENS
    prompt_tokens: int = UNKNOWN_TOKENS


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, and what it said that we did not know."""

    observed: Observed
    source: Source
    others: int
    """Requests that are not ours."""
    others_waiting: int
    """Those of them without their first token, as far as the engine's queue tells."""
    typical: Typical


@dataclass(frozen=True, slots=True)
class Correction:
    """What an observation makes of a rank's bookings as they are now."""

    book: RankBook
    version: int
    """Of the bookings."""
    lost: int
    """Bookings, the oldest, that are over without a report."""
    head: Booking | None
    """The first of ours that really waits: it alone weighs less as time passes."""
    nanoseconds: int
    """Predicted prefill of all that really wait."""
    load: Load
    """The corrected load, with a wait that leaves out what the head has had."""


@dataclass(frozen=True, slots=True)
class Part:
    """One figure that a load is made of."""

    name: str
    value: float
    source: Literal["bookings", "engine", "gateway"]
    age: float
    """Seconds since it was said; bookings are of now."""


class LoadTable:
    """The load of every rank. Its methods and the bookings' are for one thread."""

    def __init__(
        self, bookings: Bookings, stale_seconds: float, slack_seconds: float = 1.0
    ) -> None:
        """Believe observations for `stale_seconds`; `slack_seconds` is the longest way to an engine."""
        self._bookings = bookings
        self._stale = stale_seconds
        self._slack = slack_seconds
        self._seen: dict[tuple[str, int], Seen] = {}
        self._corrections: dict[tuple[str, int], Correction] = {}

    def observe(self, pod: str, rank: int, observed: Observed, source: Source = "engine") -> None:
        """Take note of what was seen of a rank, unless something later was."""
        name = (pod, rank)
        kept = self._seen.get(name)
        if kept is None or observed.at >= kept.observed.at:
            book = self._bookings.ranks().get(name, NOTHING)
            self._seen[name] = _seen(observed, source, book)
            self._corrections.pop(name, None)

    def forget(self, pod: str, rank: int) -> None:
        """Drop what was seen of a rank that is gone."""
        self._seen.pop((pod, rank), None)
        self._corrections.pop((pod, rank), None)

    def load(self, pod: str, rank: int, now: float) -> Load:
        """Return a rank's load."""
        [load] = self.loads([(pod, rank)], now)
        return load

    def loads(self, ranks: Sequence[tuple[str, int]], now: float) -> list[Load]:
        """Return the load of each of these ranks, in the order given."""
        booked = self._bookings.loads(ranks, now)
        if not self._seen:
            return booked
        return [self._corrected(*each, now) for each in zip(ranks, booked, strict=True)]

    def _corrected(self, name: tuple[str, int], booked: Load, now: float) -> Load:
        seen = self._fresh(name, now)
        if seen is None:
            return booked
        correction = self._correction(name, seen)
        load, head = correction.load, correction.head
        if head is None:
            return load
        return Load(
            correction.book.wait(head, correction.nanoseconds, now, self._bookings.head_floor),
            load.waiting,
            load.in_flight,
            load.waiting_uncached_tokens,
            load.waiting_prompt_tokens,
            load.context_tokens,
            load.queue,
            load.kv_usage,
            load.last_pick,
        )

    def explain(self, pod: str, rank: int, now: float) -> list[Part]:
        """Return what a rank's load is made of, who said so and how long ago."""
        booked = self._bookings.load(pod, rank, now)
        parts = [
            Part("booked wait", booked.wait, "bookings", 0.0),
            Part("booked waiting", booked.waiting, "bookings", 0.0),
            Part("booked in flight", booked.in_flight, "bookings", 0.0),
        ]
        seen = self._fresh((pod, rank), now)
        if seen is not None:
            lost = self._correction((pod, rank), seen).lost
            age = max(0.0, now - seen.observed.at)
            for name, value in (
                ("running", seen.observed.running),
                ("queue", seen.observed.waiting),
                ("kv usage", seen.observed.kv_usage),
                ("others in flight", seen.others),
                ("others waiting", seen.others_waiting),
                ("reports lost", lost),
            ):
                parts.append(Part(name, value, seen.source, age))
        return parts

    def check(self) -> None:
        """Raise BrokenInvariantError where a kept correction is not what it would be if made anew."""
        for name, kept in self._corrections.items():
            book = self._bookings.ranks().get(name, NOTHING)
            is_current = kept.book is book and kept.version == book.version
            if is_current and kept != _correct(book, self._seen[name], self._slack):
                raise BrokenInvariantError(f"the correction of {name} is out of date")

    def _fresh(self, name: tuple[str, int], now: float) -> Seen | None:
        seen = self._seen.get(name)
        if seen is None:
            return None
        age = now - seen.observed.at
        if age < -self._slack:
            # The clock was set back since: nobody knows how old this is.
            self.forget(*name)
            return None
        return seen if age <= self._stale else None

    def _correction(self, name: tuple[str, int], seen: Seen) -> Correction:
        book = self._bookings.ranks().get(name, NOTHING)
        kept = self._corrections.get(name)
        if kept is None or kept.book is not book or kept.version != book.version:
            kept = self._corrections[name] = _correct(book, seen, self._slack)
        return kept


def _seen(observed: Observed, source: Source, book: RankBook) -> Seen:
    ours = sum(booking.since <= observed.at for booking in book.in_flight.values())
    ours_waiting = sum(booking.since <= observed.at for booking in book.waiting.values())
    others = max(0, observed.requests - ours)
    # Ours may run already and be without a first token: they are not in the queue any more.
    others_waiting = min(others, max(0, observed.waiting - ours_waiting))
    typical = _typical(book) if others else Typical()
    return Seen(observed, source, others, others_waiting, typical)


def _typical(book: RankBook) -> Typical:
    """Return the mean of our own requests there: those that wait, or else those that run."""
    works = [booking.work for booking in (book.waiting or book.in_flight).values()]
    if not works:
        return Typical()
    return Typical(
        sum(work.nanoseconds for work in works) // len(works),
        sum(work.uncached for work in works) // len(works),
        sum(work.prompt_tokens for work in works) // len(works),
    )


def _correct(book: RankBook, seen: Seen, slack: float) -> Correction:
    observed, typical = seen.observed, seen.typical
    old = 0
    for booking in book.in_flight.values():
        if booking.since > observed.at - slack:
            break
        old += 1
    lost = max(0, old - observed.requests)
    over = [*islice(book.in_flight.values(), lost)]
    # Those that wait are in the same order, so the lost ones are the first of them.
    waited = [booking.work for booking in over if booking.id in book.waiting]
    nanoseconds = book.nanoseconds - sum(work.nanoseconds for work in waited)
    nanoseconds += seen.others_waiting * typical.nanoseconds
    load = Load(
        wait=nanoseconds / NANOSECONDS,
        waiting=len(book.waiting) - len(waited) + seen.others_waiting,
        in_flight=len(book.in_flight) - lost + seen.others,
        waiting_uncached_tokens=book.uncached_tokens
        - sum(work.uncached for work in waited)
        + seen.others_waiting * typical.uncached_tokens,
        waiting_prompt_tokens=book.prompt_tokens
        - sum(work.prompt_tokens for work in waited)
        + seen.others_waiting * typical.prompt_tokens,
        context_tokens=book.context_tokens
        - sum(booking.work.prompt_tokens for booking in over)
        + seen.others * typical.prompt_tokens,
        queue=observed.waiting,
        kv_usage=observed.kv_usage,
        last_pick=book.last_pick,
    )
    head = next(islice(book.waiting.values(), len(waited), None), None)
    return Correction(book, book.version, lost, head, nanoseconds, load)
