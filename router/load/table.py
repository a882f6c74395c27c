"""A rank's load: all routers' bookings, corrected by the rank's latest observation.

Bookings are the base, since an engine's metrics lack the latest picks. Bookings that other routers share
are added. A fresh observation, from the engine's metrics or a gateway, corrects for the time before it:

- if it has more requests than the routers have booked, the surplus is foreign (from a router that shares
  nothing, for example);
- if it has fewer, the oldest bookings have ended and their reports were lost.

A request takes a moment to reach its engine. Bookings made within SLACK seconds before an observation
may or may not be part of it, so they count neither as surplus nor as lost.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.correction import (
    SLACK,
    UNKNOWN,
    Seen,
    Source,
    UnagedLoad,
    correct,
    seen_beside,
)
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.load_columns import KeptColumns
from warmpath.router.load.other_routers import NOBODY, OthersBook
from warmpath.router.load.rank_bookings import RankBook, wait
from warmpath.scorer.candidate import Load
from warmpath.scorer.columns import LoadColumns

NOTHING = RankBook()
"""The book of a rank without bookings."""


class Others(Protocol):
    """Other routers' bookings (`router.peers.received`)."""

    def on(self, pod: str, rank: int, now: float) -> OthersBook:
        """Return other routers' bookings on a rank; the same object until they change."""

    def version(self, now: float) -> int:
        """Return a number that changes whenever other routers' bookings change."""

    def where(self) -> Collection[RankName]:
        """Return the ranks with bookings of other routers."""

    def observed(self, pod: str, rank: int, at: float) -> None:
        """Note that a rank was observed at `at`; routers that had ended count there no more."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the figures from which a load was computed, for explanations."""

    name: str
    value: float
    source: Literal["bookings", "routers", "engine", "gateway"]
    age: float
    """Seconds since it was observed or received; 0 for own bookings."""

    @property
    def is_observed(self) -> bool:
        """Whether it comes from an observation of the rank."""
        return self.source in {"engine", "gateway"}


class LoadTable:
    """The load of every rank. Use it and its bookings from one thread."""

    def __init__(
        self,
        bookings: Bookings,
        stale_seconds: float,
        others: Others | None = None,
    ) -> None:
        """Observations count for `stale_seconds`."""
        self._bookings = bookings
        self._others = others
        self._stale = stale_seconds
        self._seen: dict[RankName, Seen] = {}
        self._seen_at = float("-inf")
        """Time of the latest observation of any rank."""
        self._kept = KeptColumns(self._unaged, stale=stale_seconds)
        bookings.changed = self._kept.changed
        self._others_version = 0
        self._with_others: Collection[RankName] = ()
        """The ranks with other routers' bookings at `_others_version`."""
        self._to_renew: set[RankName] = set()
        """Ranks whose bookings by other routers may have changed since the last `take_changes`."""

    def observe(self, pod: str, rank: int, observed: Observed, source: Source = "engine") -> None:
        """Record an observation of a rank, unless a later one is known."""
        name = RankName(pod, rank)
        kept = self._seen.get(name)
        if kept is None or observed.at >= kept.observed.at:
            book = self._book(name)
            still_since = _still_since(kept, book, observed)
            self._seen_at = max(self._seen_at, observed.at)
            self._kept.changed(name)
            if _is_frozen(book, still_since, observed.at - SLACK):
                self._seen[name] = Seen(
                    observed, source, 0, 0, UNKNOWN, still_since=still_since, is_frozen=True
                )
                return
            if self._others is not None:
                self._others.observed(pod, rank, observed.at)
            self._seen[name] = seen_beside(book, observed, source, still_since=still_since)
            if self._others is None:
                # Recomputing at each observation spares the next pick from doing it for all ranks.
                self._kept.renew(name, observed.at)

    def knows_progress(self, now: float) -> bool:
        """Return whether first tokens are reported, or some rank was observed lately."""
        return self._bookings.hears_first_tokens or now - self._seen_at <= self._stale

    def avoided(self, now: float) -> Collection[RankName]:
        """Return the ranks that picks avoid, since they are stuck (`router.load.stuck`)."""
        return self._bookings.stuck.avoided(self._bookings.expire(now))

    def stuck_seconds(self, pod: str, rank: int, now: float) -> float:
        """Return for how long a stuck rank has answered nothing; 0 for any other rank."""
        return self._bookings.stuck.seconds(RankName(pod, rank), self._bookings.expire(now))

    def bad_figures(self, pod: str, rank: int) -> Sequence[str]:
        """Return the names of the figures that a rank's latest observation lacks, or that cannot be."""
        seen = self._seen.get(RankName(pod, rank))
        return () if seen is None else seen.observed.bad

    def take_changes(self, now: float) -> Collection[RankName]:
        """Process changes of other routers' bookings; return the ranks to `renew`."""
        self._take_in(now)
        changed, self._to_renew = self._to_renew, set()
        return changed

    def _take_in(self, now: float) -> None:
        version = 0 if self._others is None else self._others.version(now)
        if self._others is None or version == self._others_version:
            return
        before, self._with_others = self._with_others, self._others.where()
        self._others_version = version
        for name in {*before, *self._with_others}:
            self._kept.changed(name)
            self._to_renew.add(name)

    def renew(self, pod: str, rank: int, now: float) -> None:
        """Recompute a rank's load from the latest bookings of other routers, before a pick needs it."""
        self._kept.renew(RankName(pod, rank), now)

    @property
    def has_others(self) -> bool:
        """Whether other routers have bookings that they share."""
        return self._others is not None and bool(self._others.where())

    def forget(self, pod: str, rank: int) -> None:
        """Drop the observation of a removed rank."""
        self._seen.pop(RankName(pod, rank), None)
        self._kept.changed(RankName(pod, rank))

    def load(self, pod: str, rank: int, now: float) -> Load:
        """Return a rank's load."""
        now = self._bookings.expire(now)
        load, nanoseconds, head, free_since, *_ = self._unaged(RankName(pod, rank), now)
        return load._replace(wait=wait(nanoseconds, head, free_since, now))

    def columns(self, ranks: Sequence[RankName], now: float) -> LoadColumns:
        """Return the loads of these ranks as columns, in the order given."""
        now = self._bookings.expire(now)
        self._take_in(now)
        return self._kept.columns(ranks, now)

    def drained(self, ranks: Sequence[RankName], now: float) -> list[float]:
        """Return the seconds of booked prefill that are left on these ranks, by prediction alone.

        Unlike a wait, it falls to 0 if reports are late or lost: the time since a rank's first waiting
        request had its turn is deducted from all of its prefill. Requests that no router has booked do
        not count.
        """
        now = self._bookings.expire(now)
        self._take_in(now)
        return self._kept.drained(ranks, now)

    def _unaged(self, name: RankName, now: float) -> UnagedLoad:
        """Return a rank's load without the effects of passing time."""
        others = self._others_on(name, now)
        return correct(self._book(name), others, self._fresh(name, others, now))

    def explain(self, pod: str, rank: int, now: float) -> list[Part]:
        """Return the figures from which a rank's load is computed, with their sources and ages."""
        booked = self._bookings.load(pod, rank, now)
        parts = [
            Part("booked wait", booked.wait, "bookings", 0.0),
            Part("booked waiting", booked.waiting, "bookings", 0.0),
            Part("booked in flight", booked.in_flight, "bookings", 0.0),
        ]
        others = self._others_on(RankName(pod, rank), now)
        if others is not NOBODY:
            age = max(0.0, now - others.received_at)
            parts.append(Part("routers waiting", others.waiting, "routers", age))
            parts.append(Part("routers in flight", others.in_flight, "routers", age))
        seen = self._fresh(RankName(pod, rank), others, now)
        if seen is not None:
            lost = correct(self._book(RankName(pod, rank)), others, seen).lost
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

    def _book(self, name: RankName) -> RankBook:
        return self._bookings.ranks.get(name, NOTHING)

    def _others_on(self, name: RankName, now: float) -> OthersBook:
        return NOBODY if self._others is None else self._others.on(*name, now)

    def _fresh(self, name: RankName, others: OthersBook, now: float) -> Seen | None:
        seen = self._seen.get(name)
        if seen is None:
            return None
        if now - seen.observed.at > self._stale or seen.is_frozen:
            return None
        if others is not NOBODY:
            seen = self._seen[name] = seen.explained_by(others)
        return seen


def _still_since(kept: Seen | None, book: RankBook, observed: Observed) -> float:
    """Return since when a rank's figures are those of an observation, as far as it answered nothing."""
    if kept is None or kept.still_since < book.answered_at:
        return observed.at
    return kept.still_since if replace(kept.observed, at=observed.at) == observed else observed.at


def _is_frozen(book: RankBook, still_since: float, reached: float) -> bool:
    """Return whether figures stand still although a request has reached the engine, by `reached`."""
    return any(
        still_since < booking.since <= reached and booking.since > book.answered_at
        for booking in book.unanswered.values()
    )
