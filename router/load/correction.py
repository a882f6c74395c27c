"""Corrects the bookings on a rank, this router's and others', by a load that was observed there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Literal, NamedTuple

from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.other_routers import NOBODY, OthersBook
from warmpath.router.load.rank_bookings import NANOSECONDS, Booking, Head, RankBook
from warmpath.scorer.candidate import Load
from warmpath.scorer.prefill import PrefillModel

Source = Literal["engine", "gateway"]

SLACK = 1.0
"""Seconds within which a request reaches its engine."""
UNKNOWN_TOKENS = 2048
"""Assumed uncached length of a foreign prompt if no own request on the rank can be averaged."""

SHARED_SECONDS = 0.3
"""Longest time from another router's pick until this router knows it: two rounds, and transfer."""


@dataclass(frozen=True, slots=True)
class Typical:
    """The assumed cost of a foreign request, which this router has not booked."""

    nanoseconds: int = round(PrefillModel().seconds(UNKNOWN_TOKENS, 0) * NANOSECONDS)
    uncached_tokens: int = UNKNOWN_TOKENS
    prompt_tokens: int = UNKNOWN_TOKENS


UNKNOWN = Typical()


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, with the requests in it that are not this router's."""

    observed: Observed
    source: Source
    foreign: int
    """Requests beyond those that this router has booked."""
    foreign_waiting: int
    """Requests in the engine's queue beyond this router's waiting ones."""
    typical: Typical
    explained: int = 0
    """Requests in `foreign` that other routers had booked before the observation."""
    explained_waiting: int = 0
    """Requests in `foreign_waiting` that other routers had booked and that wait."""
    still_since: float = 0.0
    """Time of the first observation with these figures since the rank's last answer."""
    is_frozen: bool = False
    """Whether the figures stand still although requests came, so that they count for nothing."""

    @property
    def others(self) -> int:
        """Requests that no router has booked."""
        return max(0, self.foreign - self.explained)

    @property
    def others_waiting(self) -> int:
        """Requests in the engine's queue beyond the waiting ones of all routers.

        They are foreign, or ours whose first token is overdue and so presumed (`router.load.bookings`).
        """
        # A booking without a first token may be running already, and is then not in the queue.
        return max(0, self.foreign_waiting - self.explained_waiting)

    def explained_by(self, others: OthersBook) -> "Seen":
        """Return this observation, with foreign requests explained by other routers' latest bookings.

        Bookings that a router wrote before the observation lack its latest picks, and those that it
        wrote later lack requests that have ended since; so the highest number explained so far counts.
        Bookings made within SHARED_SECONDS after the observation count as made before it.
        """
        booked = others.out_by(self.observed.at + SHARED_SECONDS)
        waiting = min(booked, others.waiting)
        if booked <= self.explained and waiting <= self.explained_waiting:
            return self
        return replace(
            self,
            explained=max(booked, self.explained),
            explained_waiting=max(waiting, self.explained_waiting),
        )


class UnagedLoad(NamedTuple):
    """A rank's load without the effects of passing time, and the values needed to compute those."""

    load: Load
    """The load; its wait does not deduct the time that the head has been computed."""
    nanoseconds: int
    """Predicted prefill of all waiting requests."""
    head: Head | None
    """The first waiting request; only its weight decreases with time."""
    free_since: float
    seen_at: float
    """Time of the observation in `load`, which counts only while it is fresh; NaN: there is none."""
    lost: int
    """Bookings, of all routers, whose request has ended without a report; they do not count."""


_load, _unaged = partial(tuple.__new__, Load), partial(tuple.__new__, UnagedLoad)
"""Make these of tuples in a third of the time that calling the classes takes."""


def seen_beside(book: RankBook, observed: Observed, source: Source, still_since: float) -> Seen:
    """Return an observation with the requests in it that `book` does not have."""
    ours = sum(booking.since <= observed.at for booking in book.in_flight.values())
    ours_waiting = sum(booking.since <= observed.at for booking in book.waiting.values())
    foreign = max(0, observed.requests - ours)
    foreign_waiting = max(0, observed.waiting - ours_waiting)
    typical = _typical(book) if foreign or foreign_waiting else UNKNOWN
    return Seen(observed, source, foreign, foreign_waiting, typical, still_since=still_since)


def _typical(book: RankBook) -> Typical:
    """Return the mean cost of our own requests on the rank: the waiting ones, or else all."""
    works = [booking.work for booking in (book.waiting or book.in_flight).values()]
    if not works:
        return UNKNOWN
    return Typical(
        sum(work.own_nanoseconds for work in works) // len(works),
        sum(work.uncached for work in works) // len(works),
        sum(work.prompt_tokens for work in works) // len(works),
    )


def correct(book: RankBook, others: OthersBook, seen: Seen | None) -> UnagedLoad:
    """Return a rank's load from all routers' bookings and an observation (None: no fresh one)."""
    over, others_lost = ((), 0) if seen is None else _lost(book, others, seen.observed)
    rest = others.without(others_lost)
    waited = (
        {booking.id: booking.work for booking in over if booking.id in book.waiting} if over else {}
    )
    nanoseconds = book.prefill(waited) + rest.nanoseconds
    in_flight = len(book.in_flight) - len(over) + rest.in_flight
    waiting = len(book.waiting) - len(waited) + rest.waiting
    context_tokens = book.context_tokens + rest.context_tokens
    prompt_tokens = book.prompt_tokens + rest.prompt_tokens
    uncached_tokens = book.uncached_tokens + rest.uncached_tokens
    for booking in over:
        context_tokens -= booking.work.prompt_tokens
    for work in waited.values():
        prompt_tokens -= work.prompt_tokens
        uncached_tokens -= work.uncached
    foreign = queue = 0
    seen_at, kv_usage = math.nan, 0.0
    if seen is not None:
        seen_at, queue, kv_usage = seen.observed.at, seen.observed.waiting, seen.observed.kv_usage
        unknown, typical = seen.others, seen.typical
        in_flight += unknown
        # Some unknown waiting requests may have ended since.
        unknown_waiting = min(seen.others_waiting, in_flight - waiting)
        waiting += unknown_waiting
        foreign = unknown_waiting * typical.nanoseconds
        nanoseconds += foreign
        context_tokens += unknown * typical.prompt_tokens
        prompt_tokens += unknown_waiting * typical.prompt_tokens
        uncached_tokens += unknown_waiting * typical.uncached_tokens
    prompt_tokens = min(prompt_tokens, context_tokens)
    head = book.head(waited)
    if rest.head is not None and (head is None or rest.head < head):
        head = rest.head
    load = (
        nanoseconds / NANOSECONDS,
        waiting,
        in_flight,
        min(uncached_tokens, prompt_tokens),
        prompt_tokens,
        context_tokens,
        queue,
        kv_usage,
        max(book.last_pick, rest.last_pick),
        foreign / NANOSECONDS,
    )
    free_since = max(book.free_since, others.free_since)
    lost = len(over) + others_lost
    return _unaged((_load(load), nanoseconds, head, free_since, seen_at, lost))


def _lost(book: RankBook, others: OthersBook, observed: Observed) -> tuple[Sequence[Booking], int]:
    """Return our bookings whose reports were lost, the oldest ones, and the number of other routers'.

    An engine does not distinguish the requests of different routers, so the losses are split in
    proportion to the routers' bookings that may have ended unreported.
    """
    if len(book.in_flight) + others.in_flight <= observed.requests:
        return (), 0
    if book.is_watched and others is NOBODY:
        # None may have ended, and there are none besides.
        return (), 0
    reached = observed.at - SLACK
    old = [*takewhile(lambda booking: booking.since <= reached, book.in_flight.values())]
    theirs = others.out_by(reached)
    lost = len(old) + theirs - observed.requests
    if lost <= 0 or not {"running", "waiting"}.isdisjoint(observed.bad):
        return (), 0
    ours = [booking for booking in old if book.may_have_ended(booking)]
    theirs = max(0, theirs - others.certain)
    lost = min(lost, len(ours) + theirs)
    ours_lost = lost * len(ours) // (len(ours) + theirs) if lost else 0
    return ours[:ours_lost], min(lost - ours_lost, theirs)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the figures from which a load was computed, for explanations."""

    name: str
    value: float
    source: Literal["bookings", "routers", "engine", "gateway"]
    age: float
    """Seconds since the figure was observed or received; 0 for own bookings."""

    @property
    def is_observed(self) -> bool:
        """Whether the figure comes from an observation of the rank."""
        return self.source in {"engine", "gateway"}


def parts_of(book: RankBook, others: OthersBook, seen: Seen | None, now: float) -> list[Part]:
    """Return the figures from which `correct` computes a load."""
    parts = [
        Part("booked wait", book.seconds_ahead(now), "bookings", 0.0),
        Part("booked waiting", len(book.waiting), "bookings", 0.0),
        Part("booked in flight", len(book.in_flight), "bookings", 0.0),
    ]
    if others is not NOBODY:
        age = max(0.0, now - others.received_at)
        parts.append(Part("routers waiting", others.waiting, "routers", age))
        parts.append(Part("routers in flight", others.in_flight, "routers", age))
    if seen is not None:
        age = max(0.0, now - seen.observed.at)
        for name, value in (
            ("running", seen.observed.running),
            ("queue", seen.observed.waiting),
            ("kv usage", seen.observed.kv_usage),
            ("others in flight", seen.others),
            ("others waiting", seen.others_waiting),
            ("reports lost", correct(book, others, seen).lost),
        ):
            parts.append(Part(name, value, seen.source, age))
    return parts
