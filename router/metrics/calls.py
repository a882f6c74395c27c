"""Metrics that are counted as things happen, in plain fields.

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

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from warmpath.proto.errors import Reason
from warmpath.router.metrics.declared import DECLARED, metric, single
from warmpath.router.tracing.steps import NO_TRACER, Tracer

COUNTERS = ("requests", "refusals", "kept_out", "endpoint_picks")
OVERLOADED = Reason.Name(Reason.OVERLOADED)


class Tally:
    """Counts values by upper bounds, and their sum: a histogram."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        """The last exemplar of each bucket, by the bucket's position."""
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


class Metrics(Collector):
    """Counts calls and their steps, scored prompts, gateways' picks, waits and the loop's lag."""

    def __init__(self, tracer: Tracer = NO_TRACER, clock: Callable[[], float] = time.time) -> None:
        """Give the times of calls and steps the current trace of `tracer` as their exemplar.

        `clock` returns seconds since the Unix epoch.
        """
        self._tracer = tracer
        self._is_traced = tracer.is_on
        self._clock = clock
        self._counts: dict[str, defaultdict[tuple[str, ...], int]] = {
            name: defaultdict(int) for name in COUNTERS
        }
        self._tallies: dict[str, defaultdict[tuple[str, ...], Tally]] = {
            name: defaultdict(partial(Tally, one.buckets))
            for name, one in DECLARED.items()
            if one.kind == "histogram"
        }
        # Those of every call are at hand.
        self._requests, self._refusals = self._counts["requests"], self._counts["refusals"]
        self._seconds, self._steps = self._tallies["request_seconds"], self._tallies["step_seconds"]
        self._tokens, self._matched = (
            self._tallies[name][()] for name in ("prompt_tokens", "matched_ratio")
        )
        self.refused_connections = 0
        """Connections that were closed at once, since too many were open."""
        self.last_refused = ""
        """The address of the client whose connection was closed last for that; empty: none was."""

    def collect(self) -> Iterator[Metric]:
        for name, counts in self._counts.items():
            yield metric(name, counts.items())
        yield single("refused_connections", self.refused_connections)
        for name, tallies in self._tallies.items():
            one = DECLARED[name]
            family = HistogramMetricFamily(f"warmpath_{name}", one.text, labels=one.labels)
            if not one.labels:
                # It is shown from the start.
                tallies[()]
            for labels, tally in tallies.items():
                family.add_metric(labels, tally.buckets(), tally.sum)
            yield family

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        """Count one answer, with its status code and duration, and the reason if it is a refusal."""
        self._requests[method, code] += 1
        if reason:
            self._refusals[method, reason] += 1
        self._seconds[method,].add(seconds)
        if self._is_traced:
            self._exemplify(self._seconds[method,], seconds)

    def reported(self, also: int) -> None:
        """Count the further reports of an answered Report, which itself counts as the first one."""
        if also:
            self._requests["Report", "OK"] += also

    def stepped(self, step: str, seconds: float) -> None:
        self._steps[step,].add(seconds)
        if self._is_traced:
            self._exemplify(self._steps[step,], seconds)

    def _exemplify(self, tally: Tally, seconds: float) -> None:
        if trace_id := self._tracer.trace_id():
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
        """Count one scored prompt and the most of its leading tokens that any pod holds."""
        self._tokens.add(prompt_tokens)
        if prompt_tokens:
            self._matched.add(matched_tokens / prompt_tokens)

    def kept_out(self, asked: str, why: str) -> None:
        """Count one refusal of a method or path, `asked`; `why` is as in `AccessRefusal`."""
        self._counts["kept_out"][asked, why] += 1

    def endpoint_picked(self, outcome: str) -> None:
        self._counts["endpoint_picks"][outcome,] += 1

    def waited(self, priority: str, outcome: str, seconds: float) -> None:
        """Count a pick that has left the queue: its class, its outcome, and its wait in seconds."""
        self._tallies["queue_wait_seconds"][priority, outcome].add(seconds)

    def lagged(self, seconds: float) -> None:
        """Count one wake-up of the event loop, with the seconds by which it was late."""
        self._tallies["loop_lag_seconds"][()].add(seconds)
