"""The worker's metrics, under vLLM's names, read from the engine when they are scraped."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from simworker.shell import EngineShell
from simworker.v1.kv_cache_event import CacheEvent


class EngineCollector(Collector):
    """vLLM's series for load and cache. One label, the model's name."""

    def __init__(self, shell: EngineShell[CacheEvent], model: str) -> None:
        self._shell = shell
        self._model = model

    def describe(self) -> Iterable[Metric]:
        """Declare nothing ahead: the names are unique by construction."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the engine."""
        load = self._shell.engine.load()
        gauges = {
            "num_requests_running": load.running,
            "num_requests_waiting": load.waiting,
            "kv_cache_usage_perc": load.kv_cache_usage,
        }
        counters = {
            "prefix_cache_queries": load.prefix_cache_queries,
            "prefix_cache_hits": load.prefix_cache_hits,
            "num_preemptions": load.preemptions,
        }
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", name, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, value in counters.items():
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        behind = GaugeMetricFamily(
            "simworker_behind_seconds", "The machine was too slow by so much."
        )
        behind.add_metric([], self._shell.behind)
        yield behind
