"""Metrics that are counted as things happen, in plain fields where that is for every call."""

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.error_info import Reason
from router.metrics.tally import Tally

OVERLOADED = Reason.Name(Reason.OVERLOADED)

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
TOKENS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
WAITS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Metrics(Collector):
    """Counts answered and refused calls, scored prompts, gateways' picks, waits and the loop's lag."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests: dict[tuple[str, str], int] = defaultdict(int)
        self._refusals: dict[tuple[str, str], int] = defaultdict(int)
        self._seconds: dict[str, Tally] = {}
        self._tokens = Tally(TOKENS)
        self._matched = Tally(SHARES)
        self._kept_out = Counter(
            "warmpath_kept_out",
            "Calls refused because the caller is not known, or lacks the role.",
            ["asked", "why"],  # methods and paths that need a role; unknown, role
            registry=registry,
        )
        self._endpoint_picks = Counter(
            "warmpath_endpoint_picks",
            "Gateways' requests for a pick, by outcome.",
            ["outcome"],  # router.endpoint_picker.outcomes
            registry=registry,
        )
        self._queued = Histogram(
            "warmpath_queue_wait_seconds",
            "Time that picks waited in the queue, by class and by what became of them.",
            ["class", "outcome"],  # queue.classes; sent, refused, left
            buckets=WAITS,
            registry=registry,
        )
        self._lag = Histogram(
            "warmpath_loop_lag_seconds",
            "By how much the event loop that answers calls woke up late.",
            buckets=LAGS,
            registry=registry,
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of calls."""
        requests = CounterMetricFamily(
            "warmpath_requests",
            "Answered calls.",
            labels=["method", "code"],  # the contract's methods, gRPC's statuses
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        refusals = CounterMetricFamily(
            "warmpath_refusals",
            "Refused calls, by the reason that their callers got.",
            labels=[
                "method",
                "reason",
            ],  # router.error_info.Reason, router.endpoint_picker.outcomes
        )
        for labels, count in self._refusals.items():
            refusals.add_metric(labels, count)
        seconds = HistogramMetricFamily(
            "warmpath_request_seconds",
            "Time from a call's arrival to its answer.",
            labels=["method"],
        )
        for method, tally in self._seconds.items():
            tally.show(seconds, [method])
        tokens = HistogramMetricFamily("warmpath_prompt_tokens", "Tokens of a scored prompt.")
        self._tokens.show(tokens)
        matched = HistogramMetricFamily(
            "warmpath_matched_ratio", "Share of a scored prompt that the warmest pod holds."
        )
        self._matched.show(matched)
        yield from (requests, refusals, seconds, tokens, matched)

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        """Count one answer; one that refuses the call has a `reason`."""
        self._requests[method, code] += 1
        if reason:
            self._refusals[method, reason] += 1
        tally = self._seconds.get(method)
        if tally is None:
            tally = self._seconds[method] = Tally(SECONDS)
        tally.add(seconds)

    def refused(self, method: str, code: str) -> None:
        """Count a call that was refused for overload before anything but its headers was read."""
        self._requests[method, code] += 1
        self._refusals[method, OVERLOADED] += 1

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        """Record a scored prompt's tokens, and how many of them the warmest pod holds."""
        self._tokens.add(prompt_tokens)
        if prompt_tokens:
            self._matched.add(matched_tokens / prompt_tokens)

    def kept_out(self, asked: str, why: str) -> None:
        """Count a call or request that was refused to its caller."""
        self._kept_out.labels(asked, why).inc()

    def endpoint_picked(self, outcome: str) -> None:
        """Count a gateway's request for a pick."""
        self._endpoint_picks.labels(outcome).inc()

    def waited(self, priority: str, outcome: str, seconds: float) -> None:
        """Record how long a pick of a class waited in the queue, and what became of it."""
        self._queued.labels(priority, outcome).observe(seconds)

    def lagged(self, seconds: float) -> None:
        """Record by how much the loop woke up late, once."""
        self._lag.observe(seconds)
