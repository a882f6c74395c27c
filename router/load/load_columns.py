"""The loads of very many ranks as columns, kept from one time that they are asked for to the next.

Only of a rank that something happened to is the load made anew. What only time does is reckoned of all
at once: the head of a queue has had more, an observation is stale.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.load.rank_bookings import NANOSECONDS, Head
from scorer.candidate import Load
from scorer.load_columns import Column, LoadColumns

Name = tuple[str, int]
"""A pod, and the number of its rank."""

FIGURES = len(Load._fields)
HEAD, BEHIND, TURN, SEEN = range(FIGURES, FIGURES + 4)
"""Besides a load's own figures: nanoseconds of the head and of those behind it, when the head's turn
came, and when the rank was last observed."""
NEVER = float("inf")
"""The turn of a head where none waits."""

LEAST = 1024
"""Ranks that there is room for at first."""


class Standing(NamedTuple):
    """A rank's load for as long as nothing happens but that time passes."""

    load: Load
    """With a wait that leaves out what the head has had."""
    nanoseconds: int
    """Predicted prefill of all that wait."""
    head: Head | None
    """The first of them; it alone weighs less as time passes."""
    free_since: float
    seen_at: float | None
    """When the rank was last observed; whether that still counts depends on the time."""


class KeptColumns:
    """The load of every rank that was asked for."""

    def __init__(
        self,
        standing: Callable[[Name, float], Standing],
        *,
        stale: float,
        slack: float,
        head_floor: float,
    ) -> None:
        """Keep what `standing` returns of a rank at a time.

        An observation counts at an age of `-slack` to `stale` seconds. `head_floor` is the least share
        that a head weighs.
        """
        self._standing = standing
        self._stale = stale
        self._slack = slack
        self._floor = head_floor
        self._row_of: dict[Name, int] = {}
        self._asked: tuple[list[Name], NDArray[np.intp]] = ([], np.empty(0, np.intp))
        """Ranks that were asked for last, mostly the same again, and their rows."""
        self._room(LEAST)

    def _room(self, rows: int) -> None:
        """Make room for so many ranks; nothing is kept of any."""
        self._row_of.clear()
        self._asked = ([], np.empty(0, np.intp))
        self._figures = np.zeros((SEEN + 1, rows))
        self._is_fresh = np.zeros(rows, np.bool_)
        """Whether the observation counted when the load was made."""
        self._is_changed = np.ones(rows, np.bool_)
        """Whether the load is to be made anew."""

    def changed(self, name: Name) -> None:
        """Take note that something happened to a rank."""
        row = self._row_of.get(name)
        if row is not None:
            self._is_changed[row] = True

    def renew(self, name: Name, now: float) -> None:
        """Make a rank's load anew before it is asked for."""
        row = self._row_of.get(name)
        if row is None:
            return
        standing = self._standing(name, now)
        seen_at = standing.seen_at
        self._figures[:, row] = _row(standing)
        self._is_fresh[row] = seen_at is not None and -self._slack <= now - seen_at <= self._stale
        self._is_changed[row] = False

    def columns(self, names: Sequence[Name], now: float, waited: float) -> LoadColumns:
        """Return the loads of these ranks. `waited` is the time until which heads were computed."""
        rows = self._rows(names)
        is_due = self._is_changed[rows]
        is_due |= self._counts(rows, now) != self._is_fresh[rows]
        # The clock was set back since.
        is_due |= now - self._figures[SEEN, rows] < -self._slack
        if is_due.any():
            self._renew(np.unique(rows[is_due]), now)
        figures = self._figures[:, rows]
        figures[0] = self._waits(figures, waited)
        return LoadColumns(*figures[:FIGURES])

    def _counts(self, rows: NDArray[np.intp], now: float) -> NDArray[np.bool_]:
        """Return of which ranks the observation counts."""
        age = now - self._figures[SEEN, rows]
        counts: NDArray[np.bool_] = (age >= -self._slack) & (age <= self._stale)
        return counts

    def _waits(self, figures: NDArray[np.float64], now: float) -> Column:
        """Return the waits, to the last bit those of `router.load.rank_bookings.wait`."""
        whole = figures[HEAD]
        had = np.maximum(0.0, now - figures[TURN])
        left = np.maximum(whole - had * NANOSECONDS, self._floor * whole)
        waits: Column = np.where(
            figures[TURN] < NEVER, (figures[BEHIND] + left) / NANOSECONDS, figures[0]
        )
        return waits

    def _renew(self, rows: NDArray[np.intp], now: float) -> None:
        name_of = [*self._row_of]
        made = [_row(self._standing(name_of[row], now)) for row in rows.tolist()]
        self._figures[:, rows] = np.array(made, dtype=np.float64).T
        self._is_fresh[rows] = self._counts(rows, now)
        self._is_changed[rows] = False

    def _rows(self, names: Sequence[Name]) -> NDArray[np.intp]:
        """Return where these ranks lie."""
        wanted = [*names]
        if wanted == self._asked[0]:
            return self._asked[1]
        row_of = self._row_of
        missing = [name for name in dict.fromkeys(wanted) if name not in row_of]
        if len(row_of) + len(missing) > len(self._is_changed):
            # Pods come and go: those of before are not kept for ever.
            self._room(max(LEAST, 2 * len(wanted)))
            missing = [*dict.fromkeys(wanted)]
        for name in missing:
            row_of[name] = len(row_of)
        rows = np.array([row_of[name] for name in wanted], dtype=np.intp)
        self._asked = wanted, rows
        return rows


def _row(standing: Standing) -> tuple[float, ...]:
    """Return what is kept of a rank."""
    load, nanoseconds, head, free_since, seen_at = standing
    seen = float("nan") if seen_at is None else seen_at
    if head is None:
        return (*load, 0, 0, NEVER, seen)
    turn = max(free_since, head.since)
    return (*load, head.nanoseconds, nanoseconds - head.nanoseconds, turn, seen)
