"""Utilisation: the share of a model's ranks with a prefill to do, averaged over time.

Source: `own_rho` in `shared/bench/policy-study.md`, sampled at each request.
"""

SECONDS = 20.0
"""Time constant of the average: longer than a prefill, shorter than a change of traffic."""


class Utilisation:
    """A moving average of shares from 0 to 1. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._value = 0.0
        self._seen: float | None = None

    def after(self, share: float, now: float) -> float:
        """Return the average that `see` would set, without setting it."""
        if self._seen is None:
            return share
        elapsed = max(0.0, now - self._seen)
        return self._value + min(1.0, elapsed / SECONDS) * (share - self._value)

    def see(self, share: float, now: float) -> None:
        """Add a share, observed at `now`, to the average."""
        self._value = self.after(share, now)
        self._seen = now
