"""A histogram that is counted in plain numbers."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import cast

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString


class Tally:
    """Counts values by upper bounds, and their sum: a histogram."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        """The last one of a bucket, by its position."""
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def exemplify(self, value: float, trace_id: str, now: float) -> None:
        """Make a counted value its bucket's exemplar; `now` is seconds since the Unix epoch."""
        bucket = bisect_left(self._bounds, value)
        self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, value, now)

    def show(self, metric: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add what was counted to a metric."""
        bounds = [*map(float, self._bounds), math.inf]
        counts = accumulate(self._counts)
        names = map(cast("Callable[[float], str]", floatToGoString), bounds)
        buckets = [
            (name, count, self._exemplars[at]) if at in self._exemplars else (name, count)
            for at, (name, count) in enumerate(zip(names, counts, strict=True))
        ]
        metric.add_metric(labels, buckets, self._sum)
