"""Metrics that are counted as things happen, in plain fields where that is for every call.

`Tally` is a histogram in plain numbers.
"""

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from warmpath.proto.errors import Reason
from warmpath.router.metrics.declared import (
    DECLARED,
    SECONDS,
    SHARES,
    STEPS,
    TOKENS,
    metric,
    single,
)
from warmpath.router.tracing.tracer import NO_TRACER, Tracer


class Tally:
    """Counts values by upper bounds, and their sum: a histogram."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        """The last one of a bucket, by its position."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def exemplify(self, value: float, trace_id: str, now: float) -> None:
        """Make a counted value its bucket's exemplar; `now` is seconds since the Unix epoch."""
        bucket = bisect_left(self._bounds, value)
        self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, value, now)

    def buckets(self) -> list[tuple[str, int] | tuple[str, int, Exemplar]]:
        """Return the counts of values up to each bound, some with an exemplar."""
        bounds = [*map(float, self._bounds), math.inf]
        counts = accumulate(self._counts)
        names = map(cast("Callable[[float], str]", floatToGoString), bounds)
        return [
            (name, count, self._exemplars[at]) if at in self._exemplars else (name, count)
            for at, (name, count) in enumerate(zip(names, counts, strict=True))
        ]


OVERLOADED = Reason.Name(Reason.OVERLOADED)


class Metrics(Collector):
    """Counts calls and their steps, scored prompts, gateways' picks, waits and the loop's lag."""

    def __init__(
        self,
        registry: CollectorRegistry,
        tracer: Tracer = NO_TRACER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Give the times of calls and steps the current trace of `tracer` as their exemplar.

        `clock` returns seconds since the Unix epoch.
        """
        self._tracer = tracer
        self._is_traced = tracer.is_on
        self._clock = clock
        self._requests: dict[tuple[str, str], int] = defaultdict(int)
        self._refusals: dict[tuple[str, str], int] = defaultdict(int)
        self.refused_connections = 0
        """Connections that were closed at once, since too many were open."""
        self.last_refused = ""
        """The address of the client of the last of them."""
        self._seconds: dict[str, Tally] = defaultdict(partial(Tally, SECONDS))
        self._steps: dict[str, Tally] = defaultdict(partial(Tally, STEPS))
        self._tokens = Tally(TOKENS)
        self._matched = Tally(SHARES)
        self._kept_out = _counted("kept_out", registry)
        self._endpoint_picks = _counted("endpoint_picks", registry)
        self._queued = _timed("queue_wait_seconds", registry)
        self._lag = _timed("loop_lag_seconds", registry)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield metric("requests", self._requests.items())
        yield metric("refusals", self._refusals.items())
        yield single("refused_connections", self.refused_connections)
        seconds = (([method], tally) for method, tally in self._seconds.items())
        yield _histogram("request_seconds", *seconds)
        yield _histogram("step_seconds", *(([step], tally) for step, tally in self._steps.items()))
        yield _histogram("prompt_tokens", ((), self._tokens))
        yield _histogram("matched_ratio", ((), self._matched))

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        self._requests[method, code] += 1
        if reason:
            self._refusals[method, reason] += 1
        self._time(self._seconds[method], seconds)

    def stepped(self, step: str, seconds: float) -> None:
        self._time(self._steps[step], seconds)

    def _time(self, tally: Tally, seconds: float) -> None:
        tally.add(seconds)
        if self._is_traced and (trace_id := self._tracer.trace_id()):
            tally.exemplify(seconds, trace_id, self._clock())

    def refused(self, method: str, code: str, count: int) -> None:
        """Count calls that were refused for overload before anything but their headers was read."""
        self._requests[method, code] += count
        self._refusals[method, OVERLOADED] += count

    def refused_connection(self, client: str) -> None:
        """Count a connection of `client`, an address, that was closed since too many were open."""
        self.refused_connections += 1
        self.last_refused = client

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        self._tokens.add(prompt_tokens)
        if prompt_tokens:
            self._matched.add(matched_tokens / prompt_tokens)

    def kept_out(self, asked: str, why: str) -> None:
        self._kept_out.labels(asked, why).inc()

    def endpoint_picked(self, outcome: str) -> None:
        self._endpoint_picks.labels(outcome).inc()

    def waited(self, priority: str, outcome: str, seconds: float) -> None:
        self._queued.labels(priority, outcome).observe(seconds)

    def lagged(self, seconds: float) -> None:
        """Record by how much the loop woke up late, once."""
        self._lag.observe(seconds)


def _histogram(name: str, *tallies: tuple[Sequence[str], Tally]) -> HistogramMetricFamily:
    one = DECLARED[name]
    made = HistogramMetricFamily(f"warmpath_{name}", one.text, labels=one.labels)
    for labels, tally in tallies:
        made.add_metric(labels, tally.buckets(), tally.sum)
    return made


def _counted(name: str, registry: CollectorRegistry) -> Counter:
    one = DECLARED[name]
    return Counter(f"warmpath_{name}", one.text, one.labels, registry=registry)


def _timed(name: str, registry: CollectorRegistry) -> Histogram:
    one = DECLARED[name]
    return Histogram(
        f"warmpath_{name}", one.text, one.labels, buckets=one.buckets, registry=registry
    )
