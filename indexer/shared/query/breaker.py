"""A circuit breaker: a bucket that fails several times in a row is left alone for a while. Sans-I/O.

    closed --failures in a row--> open --a pause--> half-open --the probe succeeds--> on probation
       ^                           ^                    |                                 |  |
       |                           +---the probe fails--+          one more failure: open-+  |
       +------------------------------------------------------------------a success ---------+

The pause doubles each time, up to a bound, and is short again only after the success of a request
that was not a probe: a probe is small, and may succeed where larger requests fail.

The states are those of Michael Nygard's "Release It!" (2007), chapter 5. Probation is ours: closed,
but one failure opens the breaker again.
"""

from enum import StrEnum

from warmpath.process.invariant import BrokenInvariantError

FAILURES = 3
"""How many failures in a row open a breaker."""
PAUSE = 0.25
"""Seconds from the opening to the first probe."""
LONGEST_PAUSE = 8.0
"""The longest pause between two probes, seconds."""


class BreakerState(StrEnum):
    """The requests that a breaker lets through: all, none, or only a probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Decides whether callers may ask a bucket. `now` is a monotonic clock's time, in seconds."""

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        pause: float = PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        self.state = BreakerState.CLOSED
        self.openings = 0
        """How often it has opened; a failed probe does not count."""
        self._most = failures
        self._failures = 0
        self._first_pause = pause
        self._longest_pause = longest_pause
        self._pause = pause
        self._probe_at = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether callers may ask."""
        return self.state is BreakerState.CLOSED

    def take_probe(self, now: float) -> bool:
        """Return whether a probe is due; the caller then makes it and passes the result to `probed`.

        A probe without a result after a pause counts as lost, and another is due.
        """
        if self.is_closed or now < self._probe_at:
            return False
        self.state = BreakerState.HALF_OPEN
        self._probe_at = now + self._pause
        return True

    def probed(self, now: float, *, ok: bool) -> None:
        """Take the result of a probe, also of one that already counts as lost."""
        if self.state is not BreakerState.HALF_OPEN:
            return
        if ok:
            self.state = BreakerState.CLOSED
            self._failures = self._most - 1
        else:
            self._open(now)

    def succeeded(self) -> None:
        """Count failures from 0 again after a success; ignore a success while it is not closed."""
        if self.is_closed:
            self._failures = 0
            self._pause = self._first_pause

    def failed(self, now: float) -> None:
        """Count a failure; ignore a failure while it is not closed."""
        if not self.is_closed:
            return
        self._failures += 1
        if self._failures >= self._most:
            self._open(now)

    def _open(self, now: float) -> None:
        if self.state is BreakerState.CLOSED:
            self.openings += 1
        self.state = BreakerState.OPEN
        self._failures = 0
        self._probe_at = now + self._pause
        self._pause = min(self._longest_pause, 2 * self._pause)

    def check(self) -> None:
        """Raise BrokenInvariantError where the numbers do not fit the state."""
        if not 0 <= self._failures < self._most or (self._failures and not self.is_closed):
            raise BrokenInvariantError(f"{self._failures} failures in a row while {self.state}")
        if not self._first_pause <= self._pause <= self._longest_pause:
            raise BrokenInvariantError(f"the pause is {self._pause} s, out of bounds")
