"""Every metric of the publisher, read from its parts when it is scraped.

Labels are ranks, tiers, levels of trust and kinds of happenings: as many as are configured or defined.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexer.trust import Level
from publisher.pod_cache import PodCache
from publisher.watch_server import WatchServer


class PublisherCollector(Collector):
    """Reads one pod's cache, its journal and its watchers."""

    def __init__(self, cache: PodCache, server: WatchServer) -> None:
        self._cache = cache
        self._server = server

    def describe(self) -> Iterable[Metric]:
        """Declare nothing ahead: the names are unique by construction."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read every part."""
        yield from self._ranks()
        journal, server = self._cache.journal, self._server
        gauges = (
            ("warmpath_publisher_watchers", "Routers served now.", server.watchers),
            ("warmpath_publisher_journal_bytes", "Bytes of deltas kept.", journal.bytes),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=value)
        counters = (
            ("warmpath_publisher_deltas", "Deltas told.", journal.sequence),
            ("warmpath_publisher_snapshots", "Snapshots sent.", server.snapshots),
            ("warmpath_publisher_cut_off", "Routers that fell behind.", server.cut_off),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=value)

    def _ranks(self) -> Iterator[Metric]:
        trust = GaugeMetricFamily(
            "warmpath_publisher_rank_trust", "1 for the level in force.", labels=["rank", "level"]
        )
        blocks = GaugeMetricFamily(
            "warmpath_publisher_rank_blocks", "Distinct blocks held.", labels=["rank", "tier"]
        )
        events = CounterMetricFamily(
            "warmpath_publisher_events", "What happened to the stream.", labels=["rank", "kind"]
        )
        for rank in self._cache.ranks:
            name = str(rank.number)
            for level in Level:
                trust.add_metric([name, level], float(rank.trust.level is level))
            for tier, count in rank.blocks().items():
                blocks.add_metric([name, tier], count)
            for kind, count in rank.counts().items():
                events.add_metric([name, kind], count)
        yield from (trust, blocks, events)
