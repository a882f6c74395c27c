"""The share of waiting prefill that no router has booked, by the engines' metrics.

Where gateways that share nothing send to the same pods, each holds back for its own bookings only, and
who holds back loses its place in the pods' queues to the others. So nothing is held where much of the
work is foreign.
"""

from math import exp

SECONDS = 20.0
"""Time constant of the average."""


class ForeignShare:
    """A moving average, weighted by the prefill that waits. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._foreign = self._all = 0.0
        self.seen_at = float("-inf")

    @property
    def value(self) -> float:
        """The share, 0 to 1; 0 while nothing has waited."""
        return self._foreign / self._all if self._all > 0 else 0.0

    def see(self, foreign: float, every: float, now: float) -> None:
        """Add the seconds of foreign prefill, and of all prefill, that wait on the pods `now`."""
        weight = exp(-max(0.0, now - self.seen_at) / SECONDS)
        fresh = 1.0 - weight if self._all else 1.0
        self.seen_at = now
        self._foreign = weight * self._foreign + fresh * foreign
        self._all = weight * self._all + fresh * every
