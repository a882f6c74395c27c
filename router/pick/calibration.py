"""How much longer prefills really take on a rank than the model of them says.

The time of a prefill is that from when it can have begun (its request went out, or the first token
before it came) to its first token. Several prefills that share a step get their first tokens together:
one looks slow, the others as if they took no time. So a few are summed before they are compared, and an
exponential moving average of the ratios is kept, of their logarithms, since twice as fast is as far off
as twice as slow.

Such an average is uncertain, and the least cost wins however little it is less: of ranks that are alike
one would get all cold prompts for a difference of chance. So a rank has the factor that is usual for its
model, the median of its ranks', and of its own difference from that as much as stands out from what is
not known for sure: of d, d x (1 - (doubt / d)^2), nothing below the doubt (the non-negative garrote,
Breiman 1995).

That is so where little else tells ranks apart. On a full fleet what is taken for chance is mostly none:
prefills take longer where much is decoded beside them, and whoever got too much of the work has a queue
that sends the next elsewhere. So the doubt shrinks with what is idle. Neither makes a rank slow in
itself: its slowness is what stands out from the whole doubt.

A rank that was not measured yet has the usual factor. One that looks slow is sent nothing on a quiet
fleet, so it is forgotten after others were measured often, and is tried again.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from indexer.invariant import BrokenInvariantError
from router.load.rank_bookings import Booking

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
ALIKE = 0.1
"""Doubt that remains, of the logarithm: prefills are modelled no better than that."""
SURE = 3.0
"""Standard errors of an average that may be chance."""
USUAL_VARIANCE = 0.09
"""Of the logarithms of ratios, before any were compared: each is off by a third or so."""
ROUNDS = 100
"""Ratios of each rank of a model, on average, after which one that had none meanwhile is forgotten."""


@dataclass(slots=True)
class Average:
    """One rank's."""

    model: str
    prefills: int = 0
    seconds: float = 0.0
    """What those that are not compared yet took."""
    predicted: float = 0.0
    """What they should have taken."""
    ratios: int = 0
    log_factor: float = 0.0
    variance: float = USUAL_VARIANCE
    """Of the logarithms of ratios: a moving average too."""

    @property
    def is_known(self) -> bool:
        """Whether enough prefills were measured."""
        return self.prefills >= LEAST

    @property
    def error(self) -> float:
        """The variance of the logarithm of the factor."""
        return self.variance * max(WEIGHT / (2 - WEIGHT), 1 / max(1, self.ratios))


class _Difference(NamedTuple):
    """How a rank differs from what is usual, as logarithms."""

    usual: float
    apart: float
    doubt: float
    """Squared."""

    def standing_out(self, share: float) -> float:
        """Return what of the difference stands out from a share of the doubt."""
        apart, doubt = self.apart, share**2 * self.doubt
        return apart * (1 - doubt / apart**2) if apart**2 > doubt else 0.0


@dataclass(slots=True)
class _Model:
    """What the ranks of one model have in common."""

    ratios: int = 0
    """That were compared, of all of them."""
    known: list[float] = field(default_factory=list)
    """The logarithms of the factors of those that are known, sorted."""
    differences: dict[tuple[str, int], _Difference] = field(default_factory=dict)
    """As they were asked for since the last ratio."""
    compared: OrderedDict[tuple[str, int], int] = field(default_factory=OrderedDict)
    """How many ratios there were when a rank was last compared, the one longest ago first."""

    @property
    def usual(self) -> float:
        """The median logarithm; 0 where none is known."""
        known, half = self.known, len(self.known) // 2
        if not known:
            return 0.0
        return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2


NO_DIFFERENCE = _Difference(0.0, 0.0, 0.0)
"""Of ranks of a model that nothing was measured of."""


class Calibration:
    """The factor of each rank, learned from first tokens that were reported."""

    def __init__(self) -> None:
        self._averages: dict[tuple[str, int], Average] = {}
        self._models: dict[str, _Model] = {}

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
        name = (work.pod, work.rank)
        average = self._averages.get(name)
        if average is None or average.model != work.model:
            self.forget(*name)
            average = self._averages[name] = Average(work.model)
        expected = predicted * math.exp(average.log_factor)
        seconds = booking.first_token_at - booking.prefill_from
        average.prefills += 1
        average.seconds += min(max(seconds, 0.0), FARTHEST * expected)
        average.predicted += predicted
        if average.prefills % TOGETHER == 0:
            model = self._models.setdefault(work.model, _Model())
            if average.prefills > LEAST:
                _take(model.known, average.log_factor)
            _compare(average)
            if average.is_known:
                insort(model.known, average.log_factor)
            model.ratios += 1
            model.compared[name] = model.ratios
            model.compared.move_to_end(name)
            model.differences.clear()
            oldest, at = next(iter(model.compared.items()))
            if model.ratios - at > ROUNDS * len(model.compared):
                self.forget(*oldest)

    def factor(self, model: str, pod: str, rank: int, utilisation: float = 0.0) -> float:
        """Return what a rank's predicted seconds are to be multiplied by.

        `utilisation` is the share of the model's ranks that have a prefill to do, 0 to 1.
        """
        found = self._difference(model, pod, rank)
        return math.exp(found.usual + found.standing_out(1 - utilisation))

    def slowness(self, model: str, pod: str, rank: int) -> float:
        """Return how many times as long prefills take on a rank as on a typical one of its model.

        1 where it may be chance, however full the fleet is.
        """
        return math.exp(self._difference(model, pod, rank).standing_out(1.0))

    def all_of(
        self, of: str, ranks: Sequence[tuple[str, int]], utilisation: float
    ) -> tuple[list[float], list[float]]:
        """Return the factors of a model's ranks, by pod and number, and their slownesses."""
        factors, slownesses = [1.0] * len(ranks), [1.0] * len(ranks)
        model = self._models.get(of)
        if model is None:
            return factors, slownesses
        usual = math.exp(model.usual)
        differences, share = model.differences, 1 - utilisation
        for place, name in enumerate(ranks):
            found = differences.get(name)
            if found is None:
                found = differences[name] = self._differing(model, name)
            apart = found.apart
            if apart:
                factors[place] = math.exp(found.usual + found.standing_out(share))
                slownesses[place] = math.exp(found.standing_out(1.0))
            else:
                factors[place] = usual
        return factors, slownesses

    def usual(self, model: str) -> float:
        """Return the factor that a model's typical rank has."""
        known = self._models.get(model)
        return math.exp(known.usual) if known else 1.0

    def _difference(self, of: str, pod: str, rank: int) -> _Difference:
        model = self._models.get(of)
        if model is None:
            return NO_DIFFERENCE
        found = model.differences.get((pod, rank))
        if found is None:
            found = model.differences[pod, rank] = self._differing(model, (pod, rank))
        return found

    def _differing(self, model: _Model, name: tuple[str, int]) -> _Difference:
        usual, average = model.usual, self._averages.get(name)
        if average is None or not average.is_known:
            return _Difference(usual, 0.0, 0.0)
        doubt = ALIKE**2 + SURE**2 * average.error
        return _Difference(usual, average.log_factor - usual, doubt)

    def forget(self, pod: str, rank: int) -> None:
        """Forget a rank that is gone."""
        for model in self._models.values():
            model.differences.pop((pod, rank), None)
            model.compared.pop((pod, rank), None)
        average = self._averages.pop((pod, rank), None)
        if average is not None and average.is_known:
            model = self._models[average.model]
            _take(model.known, average.log_factor)
            model.differences.clear()

    def check(self) -> None:
        """Raise BrokenInvariantError where a factor is out of bounds or sums are of too many."""
        known: dict[str, list[float]] = {}
        for name, average in self._averages.items():
            if not math.log(FASTEST) <= average.log_factor <= math.log(SLOWEST):
                raise BrokenInvariantError(f"the factor of {name} is out of bounds")
            if average.ratios != average.prefills // TOGETHER:
                raise BrokenInvariantError(f"prefills of {name} were not compared")
            if average.is_known:
                known.setdefault(average.model, []).append(average.log_factor)
        for of, model in self._models.items():
            if model.known != sorted(known.get(of, [])):
                raise BrokenInvariantError(f"what is known of {of} is not what its ranks have")
            if any(self._averages[rank].model != of for rank in model.compared):
                raise BrokenInvariantError(f"a rank that was forgotten is remembered of {of}")
            kept = model.differences.items()
            if any(one != self._differing(model, rank) for rank, one in kept):
                raise BrokenInvariantError(f"a difference of {of} is out of date")


def _take(known: list[float], value: float) -> None:
    del known[bisect_left(known, value)]


def _compare(average: Average) -> None:
    least, most = average.predicted * FASTEST, average.predicted * SLOWEST
    ratio = min(max(average.seconds, least), most) / average.predicted
    average.ratios += 1
    weight = max(WEIGHT, 1 / average.ratios)
    off = math.log(ratio) - average.log_factor
    moved = average.log_factor + weight * off
    if average.ratios > 1:
        average.variance += weight * (off**2 - average.variance)
    average.log_factor = min(max(moved, math.log(FASTEST)), math.log(SLOWEST))
    average.seconds = average.predicted = 0.0
