"""How much longer prefills really take on a rank than the model of them says.

The time of a prefill is that from when it can have begun (its request went out, or the first token
before it came) to its first token. Several prefills that share a step get their first tokens together:
one looks slow, the others as if they took no time. So a few are summed before they are compared, and an
exponential moving average of the ratios is kept, of their logarithms, since twice as fast is as far off
as twice as slow.
"""

import math
from dataclasses import dataclass

from indexer.index import BrokenInvariantError
from router.rank_book import Booking

FASTEST, SLOWEST = 0.1, 10.0
"""Bounds of a factor; what lies beyond them is no calibration but a wrong configuration."""
TOGETHER = 4
"""Prefills that are summed."""
LEAST = 8
"""Prefills before a factor is used."""
WEIGHT = 0.1
"""Of a new ratio: a change is half learned within 28 prefills."""
FARTHEST = 4.0
"""A prefill counts for at most this many times what was expected, so one that hung moves little."""
NEARLY = 64
"""Tokens cached by which a prediction may be off: the size of the largest common block."""


@dataclass(slots=True)
class Average:
    """One rank's."""

    prefills: int = 0
    seconds: float = 0.0
    """What those that are not compared yet took."""
    predicted: float = 0.0
    """What they should have taken."""
    ratios: int = 0
    log_factor: float = 0.0


class Calibration:
    """The factor of each rank, learned from first tokens that were reported."""

    def __init__(self) -> None:
        self._averages: dict[tuple[str, int], Average] = {}

    def learn(self, booking: Booking) -> None:
        """Learn from a booking whose first token was reported; once, and where it says something.

        It says nothing where it was given up before, or where it was told that the engine found
        more or less cached than was predicted.
        """
        work = booking.work
        predicted = work.prefill / work.factor
        if booking.timed or booking.first_token_at is None or booking.prefill_from is None:
            return
        booking.timed = True
        cached = booking.actual_cached
        if predicted <= 0 or (cached is not None and abs(cached - work.cached) > NEARLY):
            return
        average = self._averages.setdefault((work.pod, work.rank), Average())
        expected = predicted * math.exp(average.log_factor)
        seconds = booking.first_token_at - booking.prefill_from
        average.prefills += 1
        average.seconds += min(max(seconds, 0.0), FARTHEST * expected)
        average.predicted += predicted
        if average.prefills % TOGETHER == 0:
            _compare(average)

    def factor(self, pod: str, rank: int) -> float:
        """Return what a rank's predicted seconds are to be multiplied by."""
        average = self._averages.get((pod, rank))
        if average is None or average.prefills < LEAST:
            return 1.0
        return math.exp(average.log_factor)

    def forget(self, pod: str, rank: int) -> None:
        """Forget a rank that is gone."""
        self._averages.pop((pod, rank), None)

    def check(self) -> None:
        """Raise BrokenInvariantError where a factor is out of bounds or sums are of too many."""
        for name, average in self._averages.items():
            if not math.log(FASTEST) <= average.log_factor <= math.log(SLOWEST):
                raise BrokenInvariantError(f"the factor of {name} is out of bounds")
            if average.ratios != average.prefills // TOGETHER:
                raise BrokenInvariantError(f"prefills of {name} were not compared")


def _compare(average: Average) -> None:
    least, most = average.predicted * FASTEST, average.predicted * SLOWEST
    ratio = min(max(average.seconds, least), most) / average.predicted
    average.ratios += 1
    weight = max(WEIGHT, 1 / average.ratios)
    moved = average.log_factor + weight * (math.log(ratio) - average.log_factor)
    average.log_factor = min(max(moved, math.log(FASTEST)), math.log(SLOWEST))
    average.seconds = average.predicted = 0.0
