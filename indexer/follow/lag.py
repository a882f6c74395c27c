"""How far the events that were followed are behind those of the engine, in seconds and batches."""

from math import inf

WINDOW_SECONDS = 300.0
"""For how long the smallest difference between the two clocks counts, at least; at most twice that."""

LATEST = 1e11
"""Timestamps are seconds since 1970: past the year 5000 they are of another unit."""


class Lag:
    """The lag of one rank. Times are seconds of one clock, given by the caller.

    An engine's clock may be hours off. So the smallest difference between its clock and ours counts as
    no lag, and lag is how much the difference has grown. A clock that goes back while batches come in
    order was set: such a batch counts as no later than the one before it. Where a clock was set back in
    a pause, the difference stays greater although all that arrived is followed; after a window that is
    no lag either. What is followed late because much waits stays lag.
    """

    def __init__(self, most_seconds: float) -> None:
        self.most_seconds = most_seconds
        self.seconds = 0.0
        """Of the batch that was followed last."""
        self.is_behind = False
        """Whether it is more than `most_seconds`, and has not been less than half of that since."""
        self._followed_at = -inf
        self.begin()

    def begin(self) -> None:
        """Know nothing of the engine's clock: there is a new connection, or another engine."""
        self._newest: int | None = None
        """The sequence of the batch that was received last; None where none was of this connection."""
        self._is_all = True
        """Whether nothing more had arrived behind it."""
        self._said = -inf
        """The last timestamp."""
        self._difference = 0.0
        """How far our clock was ahead of the engine's when that batch was followed."""
        self._set_back = 0.0
        """How far the engine's clock was set back since."""
        self._least = self._least_before = inf
        self._window_began = -inf
        self._be(0.0)

    def received(self, sequence: int, *, is_all: bool) -> None:
        """Take note of the batch that arrived last; `is_all`: few came, and no more were to be read."""
        self._newest, self._is_all = sequence, is_all

    def batches(self, last: int | None) -> int:
        """Return how many batches were received and not followed, where `last` was followed last."""
        if self._newest is None:
            return 0
        return max(0, self._newest - (-1 if last is None else last))

    def followed(self, timestamp: float, last: int, now: float) -> None:
        """Take note that the batch `last`, made at a time of the engine's clock, was followed.

        A timestamp of 0 says nothing, and neither does one that is the same again.
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
        """Let time pass: where nothing waits and nothing comes any more, all was followed."""
        if self.seconds and now - self._followed_at > self.most_seconds and not self.batches(last):
            self._be(0.0)

    def _be(self, seconds: float) -> None:
        self.seconds = seconds
        bound = self.most_seconds / 2 if self.is_behind else self.most_seconds
        self.is_behind = seconds > bound
