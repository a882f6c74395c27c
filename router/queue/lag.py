"""Measures how much later first tokens are reported than the bookings predict.

The queue keeps a pod's own queue short, so it needs an early report of each prefill's end: if first
tokens are reported half a second late, pods stand idle while requests wait for them. A late report looks
like a slow prefill, except where a request went to a rank on which no other one waited. There the time
beyond the predicted prefill is the lag: the delay of the report, the way to the engine, or work that no
router has booked. To keep a rank busy, that much more work must be booked on it.

Measured in a simulation (conversation trace, 8 pods, load 0.75): at a lag of 0.2 s
the best room is about 0.6 s, at 0.5 s it is 1.2 s and the queue gains nothing.
"""

from collections import deque
from statistics import median

from warmpath.router.pick.pick import End, Pick, Witness
from warmpath.router.pick.weigh import Choice

WINDOW = 64
"""Number of the latest samples, which are kept."""
LEAST = 8
"""Fewest samples for which the lag is known."""
SHORTEST = 0.25
"""Share of the samples that count: those with the shortest prefills, since the error of a long one's
prediction would count as lag."""
BUSY_SECONDS = 1e-6
"""Booked seconds above which a rank had another request waiting; a sum of floats may not be 0."""


class FirstTokenLag(Witness):
    """Measures the lag: the median of those of the latest samples that count (`SHORTEST`)."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """The predicted prefills and the times beyond them, in seconds."""
        self.seconds = 0.0
        """The lag; 0 while it is not known, and never less."""
        self._alone: set[int] = set()
        """Numbers of picks without a first token that went to a rank where no other request waited."""

    @property
    def is_known(self) -> bool:
        return len(self._samples) >= LEAST

    def picked(self, placed: Pick, choice: Choice) -> None:
        """Remember a pick that went to a rank with no other request waiting."""
        del choice
        # No report has come yet, so that the prediction is that for the picked rank.
        if not placed.shadow and placed.expected.booked < BUSY_SECONDS:
            self._alone.add(placed.number)

    def started(self, placed: Pick) -> None:
        """Forget a pick whose request went out to another rank than the picked one."""
        if placed.went != placed.picked:
            self._alone.discard(placed.number)

    def first_token(self, placed: Pick, now: float) -> None:
        if placed.number not in self._alone:
            return
        self._alone.discard(placed.number)
        booking = placed.booking
        if booking is None or placed.is_untimed:
            return
        self._samples.append((booking.work.prefill, now - placed.at - booking.work.prefill))
        if self.is_known:
            count = max(LEAST, round(SHORTEST * len(self._samples)))
            shortest = sorted(self._samples)[:count]
            self.seconds = max(0.0, median(beyond for _, beyond in shortest))

    def ended(self, placed: Pick, end: End, now: float) -> None:
        del end, now
        self._alone.discard(placed.number)
