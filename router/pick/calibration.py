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
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from warmpath.indexer.index.slot import RankName
from warmpath.process.ranking import Ranking
from warmpath.router.load.rank_bookings import Booking, Step, Work
from warmpath.scorer.columns import ARRIVING, FACTOR, PREFILL, SLOWNESS, Figures

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
"""Assumed share of short prefills that share a step; it weighs as much as FIRST_SHORT prefills."""
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
class _Average:
    """One rank's measurements of one model."""

    compared_at: int
    """The model's number of ratios at the rank's last comparison, or at its first prefill."""
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

    def add(self, step: Step) -> None:
        most = FARTHEST * math.exp(self.log_factor) * step.predicted
        self.prefills += step.prefills
        self.seconds += min(step.seconds, most)
        self.predicted += step.predicted

    def compare(self) -> None:
        """Learn from the measured seconds divided by the predicted ones, and set both sums to 0.

        The sums are those of the steps added since the last call; `predicted` must be above 0.
        """
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

    @property
    def doubt(self) -> float:
        """The square of the difference below which a rank does not stand out."""
        error = self.variance * max(WEIGHT / (2 - WEIGHT), 1 / self.ratios)
        return ALIKE**2 + SURE**2 * error


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
    averages: OrderedDict[RankName, _Average] = field(default_factory=OrderedDict)
    """The ranks' measurements, those that were not compared for longest first."""
    known: Ranking[RankName] = field(default_factory=Ranking)
    """The ranks with LEAST comparisons, by their `log_factor`."""
    standing: "Standing | None" = None
    """How the ranks of the last pick stand out, until one is compared anew."""

    @property
    def usual(self) -> float:
        """The median `log_factor` of the known ranks; 0 if there are none."""
        known, half = self.known, len(self.known) // 2
        if not known:
            return 0.0
        (upper, _), _ = known[half]
        (lower, _), _ = known[half if len(known) % 2 else half - 1]
        return float(lower + upper) / 2

    def compare(self, name: RankName, average: _Average) -> None:
        """Compare a rank's summed prefills with their prediction."""
        average.compare()
        if average.ratios >= LEAST:
            self.known.put(name, (average.log_factor, name))
            self.standing = None
        self.ratios += 1
        average.compared_at = self.ratios
        self.averages.move_to_end(name)
        oldest, one = next(iter(self.averages.items()))
        if self.ratios - one.compared_at > ROUNDS * len(self.averages):
            self.forget(oldest)

    def forget(self, name: RankName) -> None:
        self.standing = None
        self.averages.pop(name, None)
        self.known.drop(name)


class Standing:
    """How much each of some ranks stands out among a model's, until one of them is compared anew."""

    def __init__(self, ranks: Sequence[RankName], model: _Model | None = None) -> None:
        self.ranks = ranks
        usual = model.usual if model else 0.0
        self.usual = math.exp(usual)
        """The factor of the ranks that do not stand out."""
        far = {} if model is None else {
            name: (factor - usual, model.averages[name].doubt)
            for (factor, name), _ in model.known
            if abs(factor - usual) > LEAST_DOUBT * ALIKE
        }  # fmt: skip
        found = [(at, *far[name]) for at, name in enumerate(ranks) if name in far] if far else []
        self.far = np.array(found, np.float64).reshape(-1, 3)
        """A row for each rank that may stand out: its place, and its difference and doubt."""


NOWHERE = Standing(())
"""The standing of ranks without measurements."""


def calibrate(figures: Figures, usual: float, far: Figures, utilisation: float) -> None:
    """Fill in ranks' factors and slownesses, by their `Standing`, and multiply prefills by the factors.

    A factor multiplies a rank's predicted prefill seconds. A slowness says how many times as long
    prefills take there as on a typical rank of the model. `utilisation` is the share of the model's
    ranks with a prefill to do, 0 to 1. It is compiled (`router.pick.compiled`).
    """
    for at in range(figures.shape[1]):
        figures[SLOWNESS, at], figures[FACTOR, at] = 1.0, usual
    share = max(LEAST_DOUBT, 1 - utilisation)
    for row in range(len(far)):
        apart, doubt = far[row, 1], share**2 * far[row, 2]
        if apart**2 > doubt:
            at = int(far[row, 0])
            figures[SLOWNESS, at] = math.exp(apart * (1 - doubt / apart**2))
            figures[FACTOR, at] = usual * figures[SLOWNESS, at]
    for at in range(figures.shape[1]):
        figures[PREFILL, at] *= figures[FACTOR, at]
        figures[ARRIVING, at] *= figures[FACTOR, at]


class Calibration:
    """The factor of each rank, learned from reported first tokens.

    `base` are the seconds of a prefill that its length does not change.
    """

    def __init__(self, base: float) -> None:
        self._base = base
        self._models: defaultdict[str, _Model] = defaultdict(_Model)

    def first_token(self, booking: Booking) -> None:
        """Learn from a first token that has just been reported, in the order in which they come."""
        work = booking.work
        if booking.timed or booking.first_token_at is None:
            return
        booking.timed = True
        model = self._models[work.model]
        average = model.averages.get(work.name)
        if average is None:
            average = model.averages[work.name] = _Average(model.ratios)
        predicted = work.prefill / work.factor
        if booking.prefill_from is None:
            booking.step = self._begin(work, average, is_measured=False)
            booking.step.add(0.0, predicted)
            return
        seconds = max(0.0, booking.first_token_at - booking.prefill_from)
        shares = False
        if booking.prefill_from > booking.since:
            apart = SAME_STEP * self._base * math.exp(average.log_factor)
            shares = seconds < max(apart, REPORTS_APART)
            if predicted <= (1 + SHORT) * self._base:
                model.short += 1
                model.sharing += max(SHARING_WEIGHT, 1 / model.short) * (shares - model.sharing)
        if shares:
            predicted = max(0.0, predicted - self._base)
        if shares and average.step is not None:
            booking.step = average.step
        else:
            booking.step = self._begin(work, average, is_measured=not shares)
        booking.step.add(seconds, predicted)

    def learn(self, booking: Booking, *, is_measured: bool = True) -> None:
        """Learn from a booking that ends, once; `is_measured` says whether its times can be used.

        The step is ignored if the times cannot be used, or if the engine found more or fewer cached
        tokens than predicted (by more than `NEARLY`).
        """
        step, work, cached = booking.step, booking.work, booking.actual_cached
        if step is None:
            return
        booking.step = None
        step.running -= 1
        if not is_measured or (cached is not None and abs(cached - work.cached) > NEARLY):
            step.is_measured = False
        average = self._models[work.model].averages.get(work.name)
        if average is not None:
            self._end_if_over(work, average, step)

    def _begin(self, work: Work, average: _Average, *, is_measured: bool) -> Step:
        before, average.step = average.step, Step(is_measured)
        if before is not None:
            before.is_latest = False
            self._end_if_over(work, average, before)
        return average.step

    def _end_if_over(self, work: Work, average: _Average, step: Step) -> None:
        """Add a step that is over, and compare the sums if there are enough prefills."""
        if step.is_over and step.is_measured and step.predicted > 0:
            average.add(step)
            if average.prefills >= LEAST_SUMMED:
                self._models[work.model].compare(work.name, average)

    def standing(self, of: str, ranks: Sequence[RankName]) -> Standing:
        """Return how a model's `ranks` (pod, number) stand out."""
        model = self._models.get(of)
        if model is None or not model.known:
            return NOWHERE
        if model.standing is None or model.standing.ranks is not ranks:
            model.standing = Standing(ranks, model)
        return model.standing

    def shared(self, model: str) -> float:
        """Return the mean seconds that a model's prefill shares with others, on a rank with factor 1."""
        known = self._models.get(model)
        return (known.sharing if known else USUAL_SHARING) * self._base

    def forget(self, pod: str, rank: int) -> None:
        for model in self._models.values():
            model.forget(RankName(pod, rank))
