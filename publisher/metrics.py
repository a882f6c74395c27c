"""Every metric of the publisher, read from its parts when it is scraped.

Labels are ranks, tiers, levels of trust, states, causes and kinds of events: their number is bounded by
the configuration and the code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.pod_cache import PodCache
from warmpath.process.tls import ClientTls, ServerTls, expiries
from warmpath.publisher.watch_server import WatchServer


@dataclass(eq=False)
class PublisherCollector(Collector):
    """Reads one pod's cache, its journal, its watchers, and its writer where there is one."""

    cache: PodCache
    server: WatchServer
    writer: Writer | None
    clock: Callable[[], float]
    tls: Sequence[tuple[str, ServerTls | ClientTls | None]] = ()
    """Certificates by their use."""

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering does not read every part; the names are unique."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._ranks()
        ends = _gauge(
            "certificate_expiry_timestamp_seconds",
            "Unix time at which a file of certificates in use is no good any more, by use and file.",
            "use", "file",
        )  # fmt: skip
        for use, one in self.tls:
            for file, at in expiries(one.pem) if one is not None else ():
                ends.add_metric([use, file], at)
        yield ends
        journal, server, places = self.cache.journal, self.server, self.server.places
        yield _gauge("watchers", "Routers served now.", value=len(places))
        yield _gauge("journal_bytes", "Bytes of deltas kept.", value=journal.bytes)
        counters = (
            ("deltas", "Deltas written to the journal.", journal.sequence),
            ("snapshots", "Snapshots sent.", server.snapshots),
            ("cut_off", "Watchers ended because they fell behind the journal.", server.cut_off),
            ("slow", "Watchers ended because they read nothing.", server.slow),
            (
                "yielded",
                "Watchers ended so that a client with fewer places gets one.",
                places.yielded,
            ),
        )
        for name, text, value in counters:
            yield _counter(name, text, value=value)
        if self.writer is not None:
            yield from self._redis(self.writer)

    def _redis(self, writer: Writer) -> Iterator[Metric]:
        state = _gauge("redis_state", "1 for the state that the writer is in.", "state")
        for one in WriterState:
            state.add_metric([one], float(writer.state is one))
        rebuilds = _counter("redis_rebuilds", "Times that everything was written again.", "cause")
        for cause in Cause:
            rebuilds.add_metric([cause.name.lower()], writer.counts.rebuilds[cause])
        yield from (state, rebuilds)
        yield _gauge(
            "redis_trouble",
            "1 while this publisher cannot write to Redis what its pod holds: Redis does not answer or "
            "refuses the write. 0 while it can.",
            value=float(bool(writer.trouble)),
        )  # fmt: skip
        if writer.written_at is not None:
            behind = self.clock() - writer.written_at
            yield _gauge(
                "redis_behind_seconds", "Time since the last good write or audit.", value=behind
            )
        counts = writer.counts
        counters = (
            ("batches", "Batches of deltas written.", counts.batches),
            ("changes", "Keys added to Redis and removed from it.", counts.changes),
            ("audits", "Audits that found every bucket unchanged.", counts.audits),
            ("retries", "Commands sent again.", counts.retries),
        )
        for name, text, value in counters:
            yield _counter(f"redis_{name}", text, value=value)

    def _ranks(self) -> Iterator[Metric]:
        trust = _gauge("rank_trust", "1 for the present level of trust.", "rank", "level")
        blocks = _gauge("rank_blocks", "Distinct blocks held.", "rank", "tier")
        events = _counter(
            "events", "Events, and problems of the event stream, by kind.", "rank", "kind"
        )
        waiting = _gauge(
            "rank_orphan_bytes", "Bytes of stored blocks whose parent was never announced.", "rank"
        )
        lag_seconds = _gauge(
            "rank_lag_seconds",
            "Age of the last batch when it was applied, by the engine's clock.",
            "rank",
        )
        lag_batches = _gauge("rank_lag_batches", "Batches received and not yet applied.", "rank")
        for rank in self.cache.ranks:
            name = str(rank.number)
            lag_seconds.add_metric([name], rank.lag.seconds)
            lag_batches.add_metric([name], rank.lag_batches)
            waiting.add_metric([name], rank.state.orphans.bytes)
            for level in Level:
                trust.add_metric([name, level], float(rank.trust.level is level))
            for tier, count in rank.blocks().items():
                blocks.add_metric([name, tier], count)
            for kind, count in rank.counts().items():
                events.add_metric([name, kind], count)
        yield from (trust, blocks, events, waiting, lag_seconds, lag_batches)


def _gauge(name: str, text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"warmpath_publisher_{name}", text, value, labels or None)


def _counter(name: str, text: str, *labels: str, value: float | None = None) -> CounterMetricFamily:
    return CounterMetricFamily(f"warmpath_publisher_{name}", text, value, labels or None)
