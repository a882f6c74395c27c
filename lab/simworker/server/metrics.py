"""The worker's metrics, under the names of the engine that it simulates.

A scrape reads the engines' load; requests are counted and timed as they pass. Sources of names, labels
and bucket bounds: `vllm/v1/metrics/loggers.py` and `buckets.py` of 0.32; SGLang's "Production metrics";
NVIDIA Dynamo's "TensorRT-LLM Prometheus metrics", which do not have the load.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from warmpath.lab.simworker.engine import Load
from warmpath.lab.simworker.server.rank import Rank

FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
SLEEP_STATES: dict[int | None, str] = {None: "awake", 1: "weights_offloaded", 2: "discard_all"}
"""Level of sleep -> vLLM's name of the state; at level 0 a worker is in none of these states."""

Read = Callable[[Load], float]


@dataclass(frozen=True, slots=True)
class SeriesNames:
    """The names of one engine's series. A rank's series have `labels` and the rank's label."""

    prefix: str
    rank_label: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    gauges: Mapping[str, Read] = field(default_factory=dict)
    counters: Mapping[str, Read] = field(default_factory=dict)
    counts_tokens: bool = True
    """Whether the engine counts prompt and generated tokens."""
    finished: str = "request_success"
    finished_reason: str | None = "finished_reason"
    """The label that holds the reason why a request ended; None: the engine has no such label."""


NAMES = {
    "vllm": SeriesNames(
        "vllm:",
        "engine",
        gauges={
            "num_requests_running": lambda load: load.running,
            "num_requests_waiting": lambda load: load.waiting,
            "kv_cache_usage_perc": lambda load: load.kv_cache_usage,
        },
        counters={
            "prefix_cache_queries": lambda load: load.prefix_cache_queries,
            "prefix_cache_hits": lambda load: load.prefix_cache_hits,
            "num_preemptions": lambda load: load.preemptions,
        },
    ),
    "sglang": SeriesNames(
        "sglang:",
        "dp_rank",
        gauges={
            "num_running_reqs": lambda load: load.running,
            "num_queue_reqs": lambda load: load.waiting,
            "token_usage": lambda load: load.kv_cache_usage,
            "cache_hit_rate": lambda load: (
                load.prefix_cache_hits / load.prefix_cache_queries
                if load.prefix_cache_queries
                else 0.0
            ),
        },
        finished="num_requests",
        finished_reason=None,
    ),
    "trtllm": SeriesNames("trtllm_", None, {"engine_type": "trtllm"}, counts_tokens=False),
}
"""The names of each engine's series, by engine."""


class WorkerMetrics(Collector):
    """One worker's registry, with an observer for each of its ranks."""

    def __init__(
        self,
        names: SeriesNames,
        model: str,
        *,
        cache_config: Mapping[str, str],
        sleep_level: Callable[[], int | None],
        started: float,
    ) -> None:
        """`sleep_level` returns the worker's level of sleep, None while it is awake.

        This life began at `started`, seconds of the wall clock.
        """
        self.registry = CollectorRegistry()
        self._names = names
        self._labels = {"model_name": model} | dict(names.labels)
        self._cache_config = cache_config
        self._sleep_level = sleep_level
        self._started = started
        self._ranks: list[Rank[Any]] = []
        labels = [*self._labels, *([names.rank_label] if names.rank_label else [])]
        kit: dict[str, Any] = {"registry": self.registry, "labelnames": labels}
        self._first_token = Histogram(
            f"{names.prefix}time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            buckets=FIRST_TOKEN_BUCKETS, **kit,
        )  # fmt: skip
        self._latency = Histogram(
            f"{names.prefix}e2e_request_latency_seconds",
            "Time from a request's arrival to its last token.",
            buckets=LATENCY_BUCKETS, **kit,
        )  # fmt: skip
        self._tokens = [
            Counter(f"{names.prefix}{kind}_tokens", f"Tokens of {kind}s.", **kit)
            for kind in ("prompt", "generation")
            if names.counts_tokens
        ]
        reason = [names.finished_reason] if names.finished_reason else []
        self._finished = Counter(
            f"{names.prefix}{names.finished}", "Requests that have ended.",
            registry=self.registry, labelnames=[*labels, *reason],
        )  # fmt: skip
        self.registry.register(self)

    def observer(self, number: int) -> "RankObserver":
        labels = self._rank_labels(number)
        return RankObserver(
            self._first_token.labels(**labels),
            self._latency.labels(**labels),
            [counter.labels(**labels) for counter in self._tokens],
            self._finished,
            labels=labels,
            reason_label=self._names.finished_reason,
        )

    def watch(self, ranks: Sequence[Rank[Any]]) -> None:
        self._ranks = list(ranks)

    def _rank_labels(self, number: int) -> dict[str, str]:
        label = self._names.rank_label
        return self._labels | ({label: str(number)} if label else {})

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering does not read every rank; the names are unique."""
        return ()

    def collect(self) -> Iterator[Metric]:
        loads = [(self._rank_labels(rank.number), rank.load()) for rank in self._ranks]
        prefix = self._names.prefix
        for name, read in self._names.gauges.items():
            yield _family(
                GaugeMetricFamily, prefix + name, [(at, read(load)) for at, load in loads]
            )
        for name, read in self._names.counters.items():
            rows = [(at, read(load)) for at, load in loads]
            yield _family(CounterMetricFamily, prefix + name, rows)
        if self._names is NAMES["vllm"]:
            yield from self._only_vllm([at for at, _ in loads])
        started = GaugeMetricFamily("process_start_time_seconds", "When this life began.")
        started.add_metric([], self._started)
        yield started
        behind = GaugeMetricFamily(
            "simworker_behind_seconds", "The longest delay for which later steps did not make up."
        )
        behind.add_metric([], max((rank.behind for rank in self._ranks), default=0.0))
        yield behind

    def _only_vllm(self, ranks: list[dict[str, str]]) -> Iterator[Metric]:
        now = self._sleep_level()
        states = [
            (at | {"sleep_state": state}, float(level == now))
            for at in ranks
            for level, state in SLEEP_STATES.items()
        ]
        yield _family(GaugeMetricFamily, "vllm:engine_sleep_state", states)
        config = [(dict(self._cache_config) | {"engine": at["engine"]}, 1.0) for at in ranks]
        yield _family(GaugeMetricFamily, "vllm:cache_config_info", config)


def _family(kind: type[Any], name: str, rows: list[tuple[dict[str, str], float]]) -> Metric:
    labels = list(rows[0][0]) if rows else []
    family: Metric = kind(name, name, labels=labels)
    for at, value in rows:
        family.add_metric([at[label] for label in labels], value)  # type: ignore[attr-defined]
    return family


class RankObserver:
    """Counts and times one rank's requests."""

    def __init__(
        self,
        first_token: Histogram,
        latency: Histogram,
        tokens: list[Counter],
        finished: Counter,
        *,
        labels: dict[str, str],
        reason_label: str | None,
    ) -> None:
        self._first_token = first_token
        self._latency = latency
        self._tokens = tokens
        self._finished = finished
        self._labels = labels
        self._reason_label = reason_label

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """Count a computed prompt, whose first token came `seconds` after its arrival."""
        self._first_token.observe(seconds)
        if self._tokens:
            self._tokens[0].inc(prompt_tokens)

    def tokens(self, count: int) -> None:
        if self._tokens:
            self._tokens[1].inc(count)

    def finished(self, seconds: float, reason: str) -> None:
        self._latency.observe(seconds)
        labels = self._labels
        if self._reason_label:
            labels = labels | {self._reason_label: reason}
        self._finished.labels(**labels).inc()
