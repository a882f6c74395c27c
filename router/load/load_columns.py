"""The loads of many ranks as columns, cached from one call to the next.

A rank's load is recomputed only after an event on that rank. The effects of passing time (progress of
the head of a queue, observations that become stale) are computed for all ranks at once.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.correction import UnagedLoad
from warmpath.router.load.rank_bookings import HEAD_FLOOR, NANOSECONDS
from warmpath.scorer.candidate import Load
from warmpath.scorer.columns import Column, LoadColumns

FIGURES = len(Load._fields)
HEAD, BEHIND, TURN, SEEN = range(FIGURES, FIGURES + 4)
"""Indices of the figures after a load's own: the prefill of the head and that of the requests behind it
(ns), the time when the head's turn came, and the time of the rank's last observation (s)."""
FOREIGN = Load._fields.index("foreign_wait")
NEVER = float("inf")
"""The time of the head's turn if no request waits."""

LEAST = 1024
"""Initial number of ranks in the columns."""


class KeptColumns:
    """Cached columns of loads for all ranks that were requested."""

    def __init__(
        self,
        unaged: Callable[[RankName, float], UnagedLoad],
        *,
        stale: float,
    ) -> None:
        """`unaged` computes a rank's UnagedLoad at a time; an observation counts for `stale` seconds."""
        self._unaged = unaged
        self._stale = stale
        self._row_of: dict[RankName, int] = {}
        self._asked: tuple[list[RankName], NDArray[np.intp]] = ([], np.empty(0, np.intp))
        """The ranks of the last call and their rows, since the next call mostly has the same ranks."""
        self._room(LEAST)

    def _room(self, rows: int) -> None:
        """Allocate empty columns for `rows` ranks."""
        self._row_of.clear()
        self._asked = ([], np.empty(0, np.intp))
        self._figures = np.zeros((SEEN + 1, rows))
        """By figure and rank; a rank's index here is called its row."""
        self._is_changed = np.ones(rows, np.bool_)
        """Whether the load must be recomputed."""

    def changed(self, name: RankName) -> None:
        """Mark a rank's load as outdated."""
        row = self._row_of.get(name)
        if row is not None:
            self._is_changed[row] = True

    def renew(self, name: RankName, now: float) -> None:
        """Recompute a rank's load before it is requested."""
        unaged = self._unaged(name, now)
        row = self._row_of.get(name)
        if row is not None:
            self._figures[:, row] = _row(unaged)
            self._is_changed[row] = False

    def columns(self, names: Sequence[RankName], now: float) -> LoadColumns:
        """Return the loads of these ranks at `now`."""
        figures = self._current(names, now)
        figures[0] = self._waits(figures, now)
        return LoadColumns(*figures[:FIGURES])

    def drained(self, names: Sequence[RankName], now: float) -> list[float]:
        """Return the prefill that is left on these ranks, if their engines work as predicted."""
        figures = self._current(names, now)
        booked = (figures[HEAD] + figures[BEHIND]) / NANOSECONDS - figures[FOREIGN]
        had = np.maximum(0.0, now - figures[TURN])
        seconds: list[float] = np.where(
            figures[TURN] < NEVER, np.maximum(0.0, booked - had), 0.0
        ).tolist()
        return seconds

    def _current(self, names: Sequence[RankName], now: float) -> NDArray[np.float64]:
        """Return the figures of these ranks, recomputed where they are outdated."""
        rows = self._rows(names)
        # An observation may have become stale. There may be none: NaN is not more than anything.
        is_due = self._is_changed[rows] | (now - self._figures[SEEN, rows] > self._stale)
        if is_due.any():
            due = np.unique(rows[is_due])
            name_of = [*self._row_of]
            made = [_row(self._unaged(name_of[row], now)) for row in due.tolist()]
            self._figures[:, due] = np.array(made, dtype=np.float64).T
            self._is_changed[due] = False
        return self._figures[:, rows]

    def _waits(self, figures: NDArray[np.float64], now: float) -> Column:
        """Return the waits, bit for bit equal to those of `router.load.rank_bookings.wait`."""
        whole = figures[HEAD]
        had = np.maximum(0.0, now - figures[TURN])
        left = np.maximum(whole - had * NANOSECONDS, HEAD_FLOOR * whole)
        waits: Column = np.where(
            figures[TURN] < NEVER, (figures[BEHIND] + left) / NANOSECONDS, figures[0]
        )
        return waits

    def _rows(self, names: Sequence[RankName]) -> NDArray[np.intp]:
        """Return the rows of these ranks; add those that are missing."""
        wanted = [*names]
        if wanted == self._asked[0]:
            return self._asked[1]
        row_of = self._row_of
        missing = [name for name in dict.fromkeys(wanted) if name not in row_of]
        if len(row_of) + len(missing) > len(self._is_changed):
            # The columns are full, maybe of removed ranks: start again with these ranks.
            self._room(max(LEAST, 2 * len(wanted)))
            missing = [*dict.fromkeys(wanted)]
        for name in missing:
            row_of[name] = len(row_of)
        rows = np.array([row_of[name] for name in wanted], dtype=np.intp)
        self._asked = wanted, rows
        return rows


def _row(unaged: UnagedLoad) -> tuple[float, ...]:
    """Return a rank's figures, in the order of `KeptColumns._figures`."""
    load, nanoseconds, head, free_since, seen_at, _ = unaged
    if head is None:
        return (*load, 0, 0, NEVER, seen_at)
    turn = max(free_since, head.since)
    return (*load, head.nanoseconds, nanoseconds - head.nanoseconds, turn, seen_at)
