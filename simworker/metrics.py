"""The worker's metrics, under vLLM's names, read from the engine when they are scraped."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from simworker.engine import EngineShell


class EngineCollector(Collector):
    """vLLM's series for load and cache. One label, the model's name."""

    def __init__(self, shell: EngineShell, model: str) -> None:
        self._shell = shell
        self._model = model

    def describe(self) -> Iterable[Metric]:
        """Declare nothing ahead: the names are unique by construction."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the engine."""
        engine = self._shell.engine
        scheduler, manager = engine.scheduler, engine.manager
        gauges = {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "kv_cache_usage_perc": manager.block_pool.get_usage(),
        }
        counters = {
            "prefix_cache_queries": manager.stats.queries,
            "prefix_cache_hits": manager.stats.hits,
            "num_preemptions": scheduler.num_preemptions,
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
