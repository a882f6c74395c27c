"""A model's traffic of late: how busy and full its ranks are, and how many of its prefills are long.

The utilisation is sampled at each request.
"""

from bisect import bisect_right, insort
from collections import deque
from typing import NamedTuple

from warmpath.router.load.rank_bookings import NANOSECONDS
from warmpath.scorer.columns import KV_USAGE, WAITING, Figures

SECONDS = 20.0
"""Time constant of the shares' averages: longer than a prefill, shorter than a change of traffic."""
FULL = 0.7
"""Usage of its KV memory from which a rank counts as full: the next long prompt may not fit."""
PREFILLS = 1000
"""Number of the latest prefills whose lengths are compared."""
LEAST_PREFILLS = 100
"""Number of prefills before the share of the long ones is known."""
LONG = 3.0
"""A prefill is long if it takes more than this times the mean of the latest ones."""


class Shares(NamedTuple):
    """Shares of a model's ranks, 0 to 1: at one moment, or moving averages."""

    busy: float
    """The share of ranks with a prefill to do."""
    full: float
    """The share of ranks whose requests hold FULL of the KV memory or more, by engines' metrics."""


def shares_of(figures: Figures) -> tuple[float, float]:
    """Return which share of the ranks is busy, and which is full; compiled (`router.pick.compiled`)."""
    busy, full, number = 0.0, 0.0, figures.shape[1]
    for at in range(number):
        if figures[WAITING, at] != 0:
            busy += 1.0
        if figures[KV_USAGE, at] >= FULL:
            full += 1.0
    return busy / number, full / number


class Traffic:
    """Moving figures, all of them shares from 0 to 1. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._average = Shares(0.0, 0.0)
        self._seen: float | None = None
        self._prefills: deque[int] = deque()
        """The latest prefills, in nanoseconds: sums of integers do not accumulate rounding errors."""
        self._sorted: list[int] = []
        """The same prefills in order."""
        self._sum = 0

    def before(self, now: float) -> tuple[float, float, float]:
        """Return the averages of the past, and the weight of the shares at `now` in the next ones."""
        weight = 1.0 if self._seen is None else min(1.0, max(0.0, now - self._seen) / SECONDS)
        return *self._average, weight

    @property
    def long_share(self) -> float:
        """The share of long prefills among the latest; 1 until enough are known."""
        number = len(self._sorted)
        if number < LEAST_PREFILLS:
            return 1.0
        return 1 - bisect_right(self._sorted, LONG * self._sum / number) / number

    def see(self, shares: Shares, prefill: float, now: float) -> None:
        """Add shares of ranks at `now`, and the seconds of a prefill that goes to one then."""
        busy, full, weight = self.before(now)
        self._average = Shares(
            busy + weight * (shares.busy - busy), full + weight * (shares.full - full)
        )
        self._seen = now
        if len(self._prefills) == PREFILLS:
            oldest = self._prefills.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
            self._sum -= oldest
        latest = round(prefill * NANOSECONDS)
        self._prefills.append(latest)
        insort(self._sorted, latest)
        self._sum += latest
