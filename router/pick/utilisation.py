"""How busy a model's ranks are: the share that has a prefill to do, averaged over time.

Source: `own_rho` of `shared/bench/policy-study.md`; looked at whenever a request comes.
"""

SECONDS = 20.0
"""The average's time constant: long beside a prefill, short beside a change of traffic."""


class Utilisation:
    """A moving average of shares from 0 to 1. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._value = 0.0
        self._seen: float | None = None

    def after(self, share: float, now: float) -> float:
        """Return what the average is once `share` was seen at `now`."""
        if self._seen is None:
            return share
        elapsed = max(0.0, now - self._seen)
        return self._value + min(1.0, elapsed / SECONDS) * (share - self._value)

    def see(self, share: float, now: float) -> None:
        """Take note of a share."""
        self._value = self.after(share, now)
        self._seen = now
