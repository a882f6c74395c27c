"""Measures how late a rank's events are applied, in seconds and batches."""

from math import inf

WINDOW_SECONDS = 300.0
"""Least time for which the smallest difference of the clocks (`Lag`) counts; at most twice that."""

LATEST = 1e11
"""Highest credible timestamp in seconds since 1970; beyond it the unit must be another one."""


class Lag:
    """The lag of one rank. Times are seconds of one clock, given by the caller.

    An engine's clock may be hours off. So the smallest difference between its clock and ours counts as
    no lag, and lag is the growth of the difference. If the engine's clock goes back while batches come
    in order, it was set: such a batch has the lag of the previous one. If it was set back during a
    pause, the difference stays larger although all received batches are applied; after a window this
    counts as no lag either. Lag because of waiting batches remains lag.
    """

    def __init__(self, most_seconds: float) -> None:
        self.most_seconds = most_seconds
        self.seconds = 0.0
        """The lag of the batch that was applied last."""
        self.is_behind = False
        """Whether the lag exceeded `most_seconds` and has not fallen below half of that since."""
        self._followed_at = -inf
        self.begin()

    def begin(self) -> None:
        """Forget the engine's clock, for a new connection or another engine."""
        self._newest: int | None = None
        """The sequence of the last received batch; None: none on this connection."""
        self._is_all = True
        """Whether no batch had arrived after `_newest`."""
        self._said = -inf
        """The timestamp of the last applied batch."""
        self._difference = 0.0
        """The router's clock minus the last applied batch's timestamp and `_set_back`."""
        self._set_back = 0.0
        """Seconds by which the engine's clock was set back since the connection began."""
        self._least = self._least_before = inf
        self._window_began = -inf
        self._be(0.0)

    def received(self, sequence: int, *, is_all: bool) -> None:
        """Record the last received batch; `is_all`: the socket had no further ones."""
        self._newest, self._is_all = sequence, is_all

    def batches(self, last: int | None) -> int:
        """Return how many received batches are not applied; `last` is the sequence last applied."""
        if self._newest is None:
            return 0
        return max(0, self._newest - (-1 if last is None else last))

    def followed(self, timestamp: float, last: int, now: float) -> None:
        """Record that the batch `last`, with a timestamp of the engine's clock, was applied.

        A timestamp is ignored if it is not credible (0 or less, `LATEST` or more) or equals the
        previous one.
        """
        self._followed_at = now
        if not 0 < timestamp < LATEST or timestamp == self._said:
            return
        difference = now - timestamp - self._set_back
        if timestamp < self._said:
            self._set_back += difference - self._difference
            difference = self._difference
        self._said, self._difference = timestamp, difference
        if difference < self._floor or (self._is_all and not self.batches(last)):
            self._count(difference, now)
        self._be(difference - self._floor)

    @property
    def _floor(self) -> float:
        return min(self._least, self._least_before)

    def _count(self, difference: float, now: float) -> None:
        age = now - self._window_began
        if age >= WINDOW_SECONDS:
            self._least_before = self._least if age < 2 * WINDOW_SECONDS else inf
            self._least, self._window_began = difference, now
        self._least = min(self._least, difference)

    def tick(self, last: int | None, now: float) -> None:
        """Let time pass: the lag ends after `most_seconds` without waiting or new batches."""
        if self.seconds and now - self._followed_at > self.most_seconds and not self.batches(last):
            self._be(0.0)

    def _be(self, seconds: float) -> None:
        self.seconds = seconds
        bound = self.most_seconds / 2 if self.is_behind else self.most_seconds
        self.is_behind = seconds > bound
