"""A rank's load: all routers' bookings, corrected by the rank's latest observation.

Bookings are the base, since an engine's metrics lack the latest picks. Bookings that other routers share
are added. A fresh observation, from the engine's metrics or a gateway, corrects for the time before it:

- if it has more requests than the routers have booked, the surplus is foreign (from a router that shares
  nothing, for example);
- if it has fewer, the oldest bookings have ended and their reports were lost.

A request takes a moment to reach its engine. Bookings made within SLACK seconds before an observation
may or may not be part of it, so they count neither as surplus nor as lost.

Columns of loads are kept from one call to the next. A rank's load is recomputed only after an event on
that rank. The effects of passing time (progress of the head of a queue, observations that become stale)
are computed for all ranks at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.correction import (
    SLACK,
    Part,
    Seen,
    Source,
    UnagedLoad,
    correct,
    parts_of,
    seen_beside,
)
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.other_routers import NOBODY, OthersBook
from warmpath.router.load.rank_bookings import HEAD_FLOOR, NANOSECONDS, RankBook, wait
from warmpath.scorer.candidate import Load
from warmpath.scorer.columns import LOADS, WAIT, Figures

HEAD, LEAST_LEFT, BEHIND, TURN, SEEN = range(LOADS, LOADS + 5)
"""Indices of the figures after a load's own: the prefill of the head, the least that remains of it, and
that of the requests behind it (ns); the time when the head's turn came, and the time of the rank's last
observation (s)."""
FOREIGN = Load._fields.index("foreign_wait")
NEVER = float("inf")
"""The time of the head's turn if no request waits."""
LEAST = 1024
"""Initial number of ranks in the columns."""

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
        """Note that a rank was observed at `at`: its engine counts the requests of ended routers."""


class LoadTable:
    """The load of every rank. Use it and its bookings from one thread."""

    def __init__(
        self, bookings: Bookings, stale_seconds: float, others: Others | None = None
    ) -> None:
        """Observations count for `stale_seconds`."""
        self._bookings = bookings
        self._others = others
        self._stale = stale_seconds
        self._seen: dict[RankName, Seen] = {}
        self._seen_at = float("-inf")
        """Time of the latest observation of any rank."""
        self._changed = bookings.news
        """Ranks whose load must be recomputed."""
        self._stale_at = float("inf")
        """No observation becomes stale before this time."""
        self._others_version = 0
        self._with_others: Collection[RankName] = ()
        """The ranks with other routers' bookings at `_others_version`."""
        self._to_renew: set[RankName] = set()
        """Ranks whose bookings by other routers may have changed since the last `take_changes`."""
        self._row_of: dict[RankName, int] = {}
        self._room(LEAST)

    def _room(self, rows: int) -> None:
        """Allocate empty columns for `rows` ranks."""
        self._row_of.clear()
        self._names: list[RankName] = []
        """The ranks by row."""
        self._asked: tuple[Sequence[RankName], NDArray[np.intp]] = ((), np.empty(0, np.intp))
        """The ranks of the last call and their rows, since the next call mostly has the same ranks."""
        self._figures = np.zeros((SEEN + 1, rows))
        """By figure and rank; a rank's index here is called its row."""

    def observe(self, pod: str, rank: int, observed: Observed, source: Source = "engine") -> None:
        """Record an observation of a rank, unless a later one is known."""
        name = RankName(pod, rank)
        kept = self._seen.get(name)
        if kept is None or observed.at >= kept.observed.at:
            book = self._book(name)
            still_since = _still_since(kept, book, observed)
            self._seen_at = max(self._seen_at, observed.at)
            self._changed.add(name)
            seen = seen_beside(book, observed, source, still_since)
            seen = self._seen[name] = replace(seen, is_frozen=_is_frozen(book, seen))
            if seen.is_frozen:
                return
            if self._others is not None:
                self._others.observed(pod, rank, observed.at)
            else:
                # Recomputing at each observation spares the next pick from doing it for all ranks.
                self.renew(*name, observed.at)

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
        changed = {*before, *self._with_others}
        self._changed |= changed
        self._to_renew |= changed

    def renew(self, pod: str, rank: int, now: float) -> None:
        """Recompute a rank's load from the latest bookings of other routers, before a pick needs it."""
        name = RankName(pod, rank)
        unaged = self._unaged(name, self._bookings.expire(now))
        row = self._row_of.get(name)
        if row is not None:
            self._put(row, unaged)
            self._changed.discard(name)

    def _put(self, row: int, unaged: UnagedLoad) -> None:
        self._figures[:, row] = _row(unaged)
        # There may be no observation: NaN is not less than anything.
        self._stale_at = min(self._stale_at, unaged.seen_at + self._stale)

    def _find_stale(self, now: float) -> None:
        seen = self._figures[SEEN, : len(self._names)]
        is_stale = now - seen > self._stale
        self._changed.update(self._names[row] for row in np.flatnonzero(is_stale).tolist())
        fresh = seen[now - seen <= self._stale]
        self._stale_at = float(fresh.min()) + self._stale if len(fresh) else float("inf")

    @property
    def has_others(self) -> bool:
        """Whether other routers have bookings that they share."""
        return self._others is not None and bool(self._others.where())

    def forget(self, pod: str, rank: int) -> None:
        self._seen.pop(RankName(pod, rank), None)
        self._changed.add(RankName(pod, rank))

    def load(self, pod: str, rank: int, now: float) -> Load:
        now = self._bookings.expire(now)
        load, nanoseconds, head, free_since, *_ = self._unaged(RankName(pod, rank), now)
        return load._replace(wait=wait(nanoseconds, head, free_since, now))

    def observed(self, pod: str, rank: int, now: float) -> Observed | None:
        """Return the engine's own figures of a rank; None if there are no fresh ones."""
        name = RankName(pod, rank)
        seen = self._fresh(name, self._others_on(name, now), now)
        return None if seen is None else seen.observed

    def current(
        self, names: Sequence[RankName], now: float
    ) -> tuple[Figures, NDArray[np.intp], float]:
        """Return the current figures of ranks, the rows of those named, and the bookings' time.

        They change with the table; `copy` copies the figures, with the waits at that time.
        """
        now = self._bookings.expire(now)
        rows = self._current(names, now)
        return self._figures, rows, now

    def drained(self, ranks: Sequence[RankName], now: float) -> list[float]:
        """Return the seconds of booked prefill that are left on these ranks, by prediction alone.

        Unlike a wait, it falls to 0 if reports are late or lost: the time since a rank's first waiting
        request had its turn is deducted from all of its prefill. Requests that no router has booked do
        not count.
        """
        now = self._bookings.expire(now)
        rows = self._current(ranks, now)
        figures = self._figures[:, rows]
        booked = (figures[HEAD] + figures[BEHIND]) / NANOSECONDS - figures[FOREIGN]
        had = np.maximum(0.0, now - figures[TURN])
        left: list[float] = np.where(
            figures[TURN] < NEVER, np.maximum(0.0, booked - had), 0.0
        ).tolist()
        return left

    def _current(self, names: Sequence[RankName], now: float) -> NDArray[np.intp]:
        """Recompute the figures of these ranks where they are outdated; return their rows."""
        self._take_in(now)
        rows = self._rows(names)
        if now >= self._stale_at:
            self._find_stale(now)
        for name in self._changed:
            row = self._row_of.get(name)
            if row is not None:
                self._put(row, self._unaged(name, now))
        self._changed.clear()
        return rows

    def _rows(self, names: Sequence[RankName]) -> NDArray[np.intp]:
        if names is self._asked[0]:
            return self._asked[1]
        row_of = self._row_of
        missing = [name for name in dict.fromkeys(names) if name not in row_of]
        if len(row_of) + len(missing) > self._figures.shape[1]:
            # The columns are full, maybe of removed ranks: start again with these ranks.
            self._room(max(LEAST, 2 * len(names)))
            missing = [*dict.fromkeys(names)]
        for name in missing:
            row_of[name] = len(row_of)
            self._names.append(name)
        self._changed.update(missing)
        rows = np.array([row_of[name] for name in names], dtype=np.intp)
        self._asked = names, rows
        return rows

    def _unaged(self, name: RankName, now: float) -> UnagedLoad:
        """Return a rank's load without the effects of passing time."""
        others = self._others_on(name, now)
        return correct(self._book(name), others, self._fresh(name, others, now))

    def explain(self, pod: str, rank: int, now: float) -> list[Part]:
        """Return the figures from which a rank's load is computed, with their sources and ages."""
        name, now = RankName(pod, rank), self._bookings.expire(now)
        others = self._others_on(name, now)
        return parts_of(self._book(name), others, self._fresh(name, others, now), now)

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


def _is_frozen(book: RankBook, seen: Seen) -> bool:
    """Return whether figures stand still although a request has reached the engine."""
    reached = seen.observed.at - SLACK
    return any(
        seen.still_since < booking.since <= reached and booking.since > book.answered_at
        for booking in book.unanswered.values()
    )


def copy(figures: Figures, loads: Figures, rows: NDArray[np.intp], now: float) -> None:
    """Copy the loads in these rows of a table's figures, with the waits at `now`.

    It is compiled (`router.pick.compiled`), and bit for bit equal to `router.load.rank_bookings.wait`.
    """
    for at in range(len(rows)):
        row = rows[at]
        for figure in range(LOADS):
            figures[figure, at] = loads[figure, row]
        if loads[TURN, row] < NEVER:
            passed = max(now - loads[TURN, row], 0.0) * NANOSECONDS
            left = max(loads[HEAD, row] - passed, loads[LEAST_LEFT, row])
            figures[WAIT, at] = (left + loads[BEHIND, row]) / NANOSECONDS


def _row(unaged: UnagedLoad) -> tuple[float, ...]:
    """Return a rank's figures, in the order of `LoadTable._figures`."""
    load, nanoseconds, head, free_since, seen_at, _ = unaged
    if head is None:
        return (*load, 0, 0, 0, NEVER, seen_at)
    whole, turn = head.nanoseconds, max(free_since, head.since)
    return (*load, whole, HEAD_FLOOR * whole, nanoseconds - whole, turn, seen_at)
