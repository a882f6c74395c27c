"""A model's traffic of late: how busy its ranks are, and how many of its prefills are long.

Source of the utilisation: `own_rho` in `../shared/bench/policy-study.md`, sampled at each request.
"""

from bisect import bisect_right, insort
from collections import deque

from router.load.rank_bookings import NANOSECONDS

SECONDS = 20.0
"""Time constant of the utilisation: longer than a prefill, shorter than a change of traffic."""
PREFILLS = 1000
"""Number of the latest prefills whose lengths are compared."""
LEAST_PREFILLS = 100
"""Number of prefills before the share of the long ones is known."""
LONG = 3.0
"""A prefill is long if it takes more than this times the mean of the latest ones."""


class Traffic:
    """Moving figures, all of them shares from 0 to 1. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._utilisation = 0.0
        self._seen: float | None = None
        self._prefills: deque[int] = deque()
        """The latest prefills, in nanoseconds: sums of integers do not accumulate rounding errors."""
        self._sorted: list[int] = []
        """The same prefills in order."""
        self._sum = 0

    def utilisation(self, busy: float, now: float) -> float:
        """Return the average share of busy ranks, with the share `busy` at `now`, which is not kept."""
        if self._seen is None:
            return busy
        elapsed = max(0.0, now - self._seen)
        return self._utilisation + min(1.0, elapsed / SECONDS) * (busy - self._utilisation)

    @property
    def long_share(self) -> float:
        """The share of long prefills among the latest; 1 until enough are known."""
        number = len(self._sorted)
        if number < LEAST_PREFILLS:
            return 1.0
        return 1 - bisect_right(self._sorted, LONG * self._sum / number) / number

    def see(self, busy: float, prefill: float, now: float) -> None:
        """Add a share of busy ranks at `now`, and the seconds of a prefill that goes to one then."""
        self._utilisation = self.utilisation(busy, now)
        self._seen = now
        if len(self._prefills) == PREFILLS:
            oldest = self._prefills.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
            self._sum -= oldest
        latest = round(prefill * NANOSECONDS)
        self._prefills.append(latest)
        insort(self._sorted, latest)
        self._sum += latest
