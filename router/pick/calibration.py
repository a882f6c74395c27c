"""Learns how much longer prefills take on each rank than the cost model predicts.

A prefill's time runs from its earliest possible start (its request went out, or the previous first token
came) to its first token. Prefills that share a step of the engine get their first tokens together: one
looks slow, the others look instant. So whole steps with at least LEAST_SUMMED prefills are summed before
the sum is compared with its prediction, and an exponential moving average of the ratios' logarithms is
kept (twice as fast is as far off as twice as slow). First tokens say which prefills a step has; the
requests' ends, with which engines report cached tokens, whether it can be compared.

The fixed part of a prefill is the step's (it reads the weights), so a prefill that shares a step has
none. Engines that compute one prompt at a time share none, others many under load: `shared` says how
much of the fixed part prompts that wait for each other are spared on average.

The average is uncertain, and the least cost wins by any margin, so among equal ranks one would get all
cold prompts by chance. A rank's factor is therefore the median of its model's ranks, plus the part of
its own difference d that exceeds the doubt: d x (1 - (doubt / d)^2), zero below the doubt (the
non-negative garrote, Breiman 1995).

On a busy fleet more differences are real: prefills take longer beside much decoding, and a rank with
too much work has a queue that sends the next request elsewhere. So the doubt shrinks as utilisation
grows, by a quarter at most: prompts that are computed beside each other in chunks, or wait for memory,
differ by chance. A rank's `slowness` is its factor without the usual one.

A rank without measurements has the usual factor. On a quiet fleet a rank that looks slow gets no
requests, so its measurements are forgotten after many of other ranks, and it is tried again.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.rank_bookings import Booking, Step

FASTEST, SLOWEST = 0.1, 10.0
"""Bounds of a factor; a value beyond them means a wrong configuration."""
LEAST_SUMMED = 4
"""Least number of prefills that are summed before a comparison."""
LEAST = 2
"""Number of comparisons before a rank's factor is used."""
SAME_STEP = 0.5
"""Two first tokens are of one step if less than this multiple of the fixed part lies between them, or
less than REPORTS_APART."""
REPORTS_APART = 0.004
"""Seconds between the reports of two first tokens of one step: they come over different connections."""
SHORT = 10.0
"""A prefill is short if it takes at most this multiple of the fixed part besides. Long ones seldom come
in one step, and the fixed part is little of them."""
USUAL_SHARING = 0.8
"""Assumed share of short prefills that share a step; counts as FIRST_SHORT of them."""
FIRST_SHORT = 10
SHARING_WEIGHT = 0.02
"""Least weight of one short prefill in the average of those that share a step."""
WEIGHT = 0.1
"""Weight of a new ratio in the average: a change is half learned within seven comparisons."""
FARTHEST = 4.0
"""A step counts as at most this multiple of its expected time, so that one hang changes little."""
NEARLY = 64
"""Tolerance of predicted cached tokens: the largest block size in common use, in tokens."""
ALIKE = 0.1
"""Doubt that always remains, in the logarithm: the cost model is no more accurate than that."""
SURE = 3.0
"""Number of standard errors of an average that count as chance."""
LEAST_DOUBT = 0.75
"""Share of the doubt that remains on a full fleet, where more differences are real."""
USUAL_VARIANCE = 0.09
"""Assumed variance of the ratios' logarithms before any comparison: each is off by about a third."""
ROUNDS = 100
"""A rank is forgotten after a model's ranks had this many ratios on average and it had none."""


@dataclass(slots=True)
class Average:
    """One rank's measurements."""

    model: str
    prefills: int = 0
    """Number of prefills that are not compared yet."""
    seconds: float = 0.0
    """Measured time of these prefills."""
    predicted: float = 0.0
    """Predicted time of these prefills."""
    step: Step | None = None
    """The step of the latest first token."""
    ratios: int = 0
    log_factor: float = 0.0
    variance: float = USUAL_VARIANCE
    """Variance of the ratios' logarithms, also a moving average."""

    @property
    def is_known(self) -> bool:
        """Whether the rank has enough comparisons for its factor to be used."""
        return self.ratios >= LEAST

    @property
    def error(self) -> float:
        """The variance of `log_factor`."""
        return self.variance * max(WEIGHT / (2 - WEIGHT), 1 / max(1, self.ratios))

    def add(self, step: Step) -> None:
        """Add a step to the sums."""
        most = FARTHEST * math.exp(self.log_factor) * step.predicted
        self.prefills += step.prefills
        self.seconds += min(step.seconds, most)
        self.predicted += step.predicted

    def compare(self) -> None:
        """Learn from the sums, and begin new ones."""
        least, most = self.predicted * FASTEST, self.predicted * SLOWEST
        ratio = min(max(self.seconds, least), most) / self.predicted
        self.ratios += 1
        weight = max(WEIGHT, 1 / self.ratios)
        off = math.log(ratio) - self.log_factor
        moved = self.log_factor + weight * off
        if self.ratios > 1:
            self.variance += weight * (off**2 - self.variance)
        self.log_factor = min(max(moved, math.log(FASTEST)), math.log(SLOWEST))
        self.prefills, self.seconds, self.predicted = 0, 0.0, 0.0


class _Difference(NamedTuple):
    """A rank's difference from its model's usual factor, in logarithms."""

    usual: float
    apart: float
    doubt: float
    """The square of the doubt."""

    def standing_out(self, share: float) -> float:
        """Return the part of the difference that exceeds a share (0 to 1) of the doubt."""
        apart, doubt = self.apart, share**2 * self.doubt
        return apart * (1 - doubt / apart**2) if apart**2 > doubt else 0.0


@dataclass(slots=True)
class _Model:
    """The statistics of one model's ranks."""

    ratios: int = 0
    """Number of ratios of all ranks."""
    short: int = FIRST_SHORT
    """Short prefills that waited for the first token before theirs."""
    sharing: float = USUAL_SHARING
    """Of the short prefills that waited for another one's first token, the share that had theirs in the
    same step; a moving average."""
    known: list[float] = field(default_factory=list)
    """The `log_factor`s of ranks with `is_known`, sorted."""
    differences: dict[RankName, _Difference] = field(default_factory=dict)
    """Cache of `_differing` since the last ratio."""
    compared: OrderedDict[RankName, int] = field(default_factory=OrderedDict)
    """`ratios` at each rank's last comparison, the longest ago first."""

    @property
    def usual(self) -> float:
        """The median `log_factor`; 0 if none is known."""
        known, half = self.known, len(self.known) // 2
        if not known:
            return 0.0
        return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2


NO_DIFFERENCE = _Difference(0.0, 0.0, 0.0)
"""The difference of a rank of a model without measurements."""


class Calibration:
    """The factor of each rank, learned from reported first tokens.

    `base` are the seconds of a prefill that its length does not change.
    """

    def __init__(self, base: float) -> None:
        self._base = base
        self._averages: dict[RankName, Average] = {}
        self._models: dict[str, _Model] = {}

    def first_token(self, booking: Booking) -> None:
        """Learn from a first token that has just been reported, in the order in which they come."""
        work = booking.work
        if booking.timed or booking.first_token_at is None:
            return
        booking.timed = True
        name = RankName(work.pod, work.rank)
        average = self._averages.get(name)
        if average is None or average.model != work.model:
            self.forget(*name)
            average = self._averages[name] = Average(work.model)
        predicted = work.prefill / work.factor
        if booking.prefill_from is None:
            booking.step = self._begin(name, average, is_measured=False)
            booking.step.add(0.0, predicted)
            return
        seconds = max(0.0, booking.first_token_at - booking.prefill_from)
        shares = False
        if booking.prefill_from > booking.since:
            apart = SAME_STEP * self._base * math.exp(average.log_factor)
            shares = seconds < max(apart, REPORTS_APART)
            if predicted <= (1 + SHORT) * self._base:
                model = self._models.setdefault(work.model, _Model())
                model.short += 1
                model.sharing += max(SHARING_WEIGHT, 1 / model.short) * (shares - model.sharing)
        if shares:
            predicted = max(0.0, predicted - self._base)
        if shares and average.step is not None:
            booking.step = average.step
        else:
            booking.step = self._begin(name, average, is_measured=not shares)
        booking.step.add(seconds, predicted)

    def learn(self, booking: Booking, *, is_measured: bool = True) -> None:
        """Learn from a booking that ends, once; `is_measured` says whether its times can be used.

        Its step is ignored if they cannot, or if the engine found more or fewer cached tokens than
        predicted (by more than `NEARLY`).
        """
        step, work, cached = booking.step, booking.work, booking.actual_cached
        if step is None:
            return
        booking.step = None
        step.running -= 1
        if not is_measured or (cached is not None and abs(cached - work.cached) > NEARLY):
            step.is_measured = False
        name = RankName(work.pod, work.rank)
        average = self._averages.get(name)
        if step.is_over and average is not None and average.model == work.model:
            self._end(name, average, step)

    def _begin(self, name: RankName, average: Average, *, is_measured: bool) -> Step:
        """Begin a rank's next step."""
        before, average.step = average.step, Step(is_measured)
        if before is not None:
            before.is_latest = False
            if before.is_over:
                self._end(name, average, before)
        return average.step

    def _end(self, name: RankName, average: Average, step: Step) -> None:
        """Add a step that is over, and compare the sums if there are enough prefills."""
        if step.is_measured and step.predicted > 0:
            average.add(step)
            if average.prefills >= LEAST_SUMMED:
                self._compare(name, average)

    def _compare(self, name: RankName, average: Average) -> None:
        """Compare a rank's summed prefills with their prediction."""
        model = self._models.setdefault(average.model, _Model())
        if average.is_known:
            _take(model.known, average.log_factor)
        average.compare()
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
        """Return the factor by which to multiply a rank's predicted prefill seconds.

        `utilisation` is the share of the model's ranks with a prefill to do, 0 to 1.
        """
        found = self._difference(model, pod, rank)
        return math.exp(found.usual + found.standing_out(_doubted(utilisation)))

    def all_of(
        self, of: str, ranks: Sequence[RankName], utilisation: float
    ) -> tuple[list[float], list[float]]:
        """Return the factors and slownesses of a model's `ranks` (pod, number), in their order.

        A slowness says how many times as long prefills take there as on a typical rank of the model.
        """
        factors, slownesses = [1.0] * len(ranks), [1.0] * len(ranks)
        model = self._models.get(of)
        if model is None:
            return factors, slownesses
        usual = math.exp(model.usual)
        differences, share = model.differences, _doubted(utilisation)
        for place, name in enumerate(ranks):
            found = differences.get(name)
            if found is None:
                found = differences[name] = self._differing(model, name)
            if found.apart:
                slownesses[place] = math.exp(found.standing_out(share))
            factors[place] = usual * slownesses[place]
        return factors, slownesses

    def shared(self, model: str) -> float:
        """Return the seconds of a model's prefill on average that it shares with those it waits for.

        They are those of a rank with the factor 1.
        """
        known = self._models.get(model)
        return (known.sharing if known else USUAL_SHARING) * self._base

    def usual(self, model: str) -> float:
        """Return the factor of a model's typical rank."""
        known = self._models.get(model)
        return math.exp(known.usual) if known else 1.0

    def _difference(self, of: str, pod: str, rank: int) -> _Difference:
        model = self._models.get(of)
        if model is None:
            return NO_DIFFERENCE
        found = model.differences.get(RankName(pod, rank))
        if found is None:
            found = model.differences[RankName(pod, rank)] = self._differing(
                model, RankName(pod, rank)
            )
        return found

    def _differing(self, model: _Model, name: RankName) -> _Difference:
        usual, average = model.usual, self._averages.get(name)
        if average is None or not average.is_known:
            return _Difference(usual, 0.0, 0.0)
        doubt = ALIKE**2 + SURE**2 * average.error
        return _Difference(usual, average.log_factor - usual, doubt)

    def forget(self, pod: str, rank: int) -> None:
        """Forget a rank's measurements."""
        for model in self._models.values():
            model.differences.pop(RankName(pod, rank), None)
            model.compared.pop(RankName(pod, rank), None)
        average = self._averages.pop(RankName(pod, rank), None)
        if average is not None and average.is_known:
            model = self._models[average.model]
            _take(model.known, average.log_factor)
            model.differences.clear()


def _doubted(utilisation: float) -> float:
    """Return the share of the doubt that remains at a utilisation from 0 to 1."""
    return max(LEAST_DOUBT, 1 - utilisation)


def _take(known: list[float], value: float) -> None:
    del known[bisect_left(known, value)]
