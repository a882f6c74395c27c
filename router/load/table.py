"""A rank's load: bookings, our own and other routers', corrected by what its engine said last.

What we booked after an observation is known to us alone, so bookings are the base. Where routers
share theirs, what the others have told is added, once. A fresh observation, an engine's or a gateway's,
corrects them for what was booked before it:

- it counts more requests than we had there and were told of: the surplus is somebody else's, a router's
  that shares nothing for one;
- it counts fewer: the oldest are over, and their reports were lost.

A request takes a moment to reach its engine, so the youngest bookings before an observation (`slack`)
may or may not be among those it counts: they are taken for neither surplus nor lost.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from indexer.invariant import BrokenInvariantError
from router.load.bookings import Bookings
from router.load.correction import Correction, Seen, Source, correct, seen_beside
from router.load.engine_metrics import Observed
from router.load.load_columns import KeptColumns, Standing
from router.load.other_routers import NOBODY, OthersBook
from router.load.rank_bookings import RankBook, wait
from scorer.candidate import Load
from scorer.load_columns import LoadColumns, columns_of

FEW = 32
"""Ranks of which the loads are made sooner one by one than looked up among those that are kept."""

NOTHING = RankBook()
"""What is booked where nothing is."""


class Others(Protocol):
    """Other routers' bookings (`router.peers.received`)."""

    def on(self, pod: str, rank: int, now: float) -> OthersBook:
        """Return those on a rank; the same object for as long as nothing else was told."""

    def version(self, now: float) -> int:
        """Return a number that is another one whenever anything else was told."""

    def where(self) -> Collection[tuple[str, int]]:
        """Return the ranks on which anything was told of lately."""


@dataclass(frozen=True, slots=True)
class Part:
    """One figure that a load is made of."""

    name: str
    value: float
    source: Literal["bookings", "routers", "engine", "gateway"]
    age: float
    """Seconds since it was said; bookings are of now."""

    @property
    def is_observed(self) -> bool:
        """Whether somebody saw it on the rank itself."""
        return self.source in {"engine", "gateway"}


class LoadTable:
    """The load of every rank. Its methods and the bookings' are for one thread."""

    def __init__(
        self,
        bookings: Bookings,
        stale_seconds: float,
        slack_seconds: float = 1.0,
        others: Others | None = None,
    ) -> None:
        """Believe observations for `stale_seconds`; `slack_seconds` is the longest way to an engine."""
        self._bookings = bookings
        self._others = others
        self._stale = stale_seconds
        self._slack = slack_seconds
        self._seen: dict[tuple[str, int], Seen] = {}
        self._corrections: dict[tuple[str, int], Correction] = {}
        self._kept = KeptColumns(
            self._standing, stale=stale_seconds, slack=slack_seconds, head_floor=bookings.head_floor
        )
        bookings.listen(self._kept.changed)
        self._others_version = 0
        self._with_others: Collection[tuple[str, int]] = ()
        """The ranks that the version of others' bookings is of."""
        self._to_renew: set[tuple[str, int]] = set()
        """Those of which others have told since `heard`."""

    def observe(self, pod: str, rank: int, observed: Observed, source: Source = "engine") -> None:
        """Take note of what was seen of a rank, unless something later was."""
        name = (pod, rank)
        kept = self._seen.get(name)
        if kept is None or observed.at >= kept.observed.at:
            self._seen[name] = seen_beside(self._book(name), observed, source)
            self._kept.changed(name)
            if self._others is None:
                # Observations come one by one; the pick that follows thousands finds all done.
                self._kept.renew(name, observed.at)

    def heard(self, now: float) -> Collection[tuple[str, int]]:
        """Take note that other routers have told anew; return the ranks to `renew`."""
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
        """Reckon a rank's load before a pick asks for it: what others booked explains what was seen."""
        name = (pod, rank)
        self._fresh(name, self._told(name, now), now)
        self._kept.renew(name, now)

    def forget(self, pod: str, rank: int) -> None:
        """Drop what was seen of a rank that is gone."""
        self._seen.pop((pod, rank), None)
        self._corrections.pop((pod, rank), None)
        self._kept.changed((pod, rank))

    def load(self, pod: str, rank: int, now: float) -> Load:
        """Return a rank's load."""
        [load] = self.loads([(pod, rank)], now)
        return load

    def loads(self, ranks: Sequence[tuple[str, int]], now: float) -> list[Load]:
        """Return the load of each of these ranks, in the order given."""
        waited = self._bookings.expire(now)
        return [self._load(name, now, waited) for name in ranks]

    def _load(self, name: tuple[str, int], now: float, waited: float) -> Load:
        load, nanoseconds, head, free_since, _ = self._standing(name, now)
        if head is None:
            return load
        floor = self._bookings.head_floor
        return load._replace(wait=wait(nanoseconds, head, free_since, waited, floor))

    def columns(self, ranks: Sequence[tuple[str, int]], now: float) -> LoadColumns:
        """Return the loads of these ranks as columns, in the order given."""
        if len(ranks) < FEW:
            return columns_of(self.loads(ranks, now))
        waited = self._bookings.expire(now)
        self._take_in(now)
        return self._kept.columns(ranks, now, waited)

    def _standing(self, name: tuple[str, int], now: float) -> Standing:
        """Return a rank's load for as long as only time passes."""
        correction = self._found(name, now)
        seen = self._seen.get(name)
        seen_at = None if seen is None else seen.observed.at
        if correction is None:
            book = self._book(name)
            return Standing(book.rest(), book.nanoseconds, book.head(), book.free_since, seen_at)
        return Standing(
            correction.load,
            correction.nanoseconds,
            correction.head,
            correction.free_since,
            seen_at,
        )

    def _found(self, name: tuple[str, int], now: float) -> Correction | None:
        """Return what corrects a rank's bookings; None where nothing does."""
        others = self._told(name, now)
        seen = self._fresh(name, others, now)
        if seen is None and others is NOBODY:
            return None
        return self._correction(name, others, seen)

    def explain(self, pod: str, rank: int, now: float) -> list[Part]:
        """Return what a rank's load is made of, who said so and how long ago."""
        booked = self._bookings.load(pod, rank, now)
        parts = [
            Part("booked wait", booked.wait, "bookings", 0.0),
            Part("booked waiting", booked.waiting, "bookings", 0.0),
            Part("booked in flight", booked.in_flight, "bookings", 0.0),
        ]
        others = self._told((pod, rank), now)
        if others is not NOBODY:
            age = max(0.0, now - others.told_at)
            parts.append(Part("routers waiting", others.waiting, "routers", age))
            parts.append(Part("routers in flight", others.in_flight, "routers", age))
        seen = self._fresh((pod, rank), others, now)
        if seen is not None:
            lost = self._correction((pod, rank), others, seen).lost
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
            book = self._book(name)
            is_current = kept.is_of(book, kept.others, self._seen.get(name))
            if is_current and kept != correct(book, kept.others, kept.seen, self._slack):
                raise BrokenInvariantError(f"the correction of {name} is out of date")

    def _book(self, name: tuple[str, int]) -> RankBook:
        return self._bookings.ranks().get(name, NOTHING)

    def _told(self, name: tuple[str, int], now: float) -> OthersBook:
        return NOBODY if self._others is None else self._others.on(*name, now)

    def _fresh(self, name: tuple[str, int], others: OthersBook, now: float) -> Seen | None:
        seen = self._seen.get(name)
        if seen is None:
            return None
        age = now - seen.observed.at
        if age < -self._slack:
            # The clock was set back since: nobody knows how old this is.
            self.forget(*name)
            return None
        if age > self._stale:
            return None
        if others is not NOBODY:
            seen = self._seen[name] = seen.explained_by(others)
        return seen

    def _correction(
        self, name: tuple[str, int], others: OthersBook, seen: Seen | None
    ) -> Correction:
        book = self._book(name)
        kept = self._corrections.get(name)
        if kept is None or not kept.is_of(book, others, seen):
            kept = self._corrections[name] = correct(book, others, seen, self._slack)
        return kept
