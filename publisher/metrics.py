"""Every metric of the publisher: kind, sentence, labels. docs/reference/metrics.md is made of them.

A scrape reads the values from the publisher's parts. Labels are ranks, tiers, levels of trust, states,
causes and kinds of events: their number is bounded by the configuration and the code.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.pod_cache import PodCache
from warmpath.process.metric import Declared, Family, Sample, counter, gauge
from warmpath.process.tls import ClientTls, ServerTls, expiries
from warmpath.publisher.watch_server import WatchServer

DECLARED: Mapping[str, Declared] = {
    "rank_trust": gauge("1 for the present level of trust.", "rank", "level"),
    "rank_blocks": gauge("Distinct blocks held.", "rank", "tier"),
    "events": counter("Events, and problems of the event stream, by kind.", "rank", "kind"),
    "rank_orphan_bytes": gauge("Bytes of stored blocks whose parent was never announced.", "rank"),
    "rank_lag_seconds": gauge(
        "Age of the last batch when it was applied, by the engine's clock.", "rank"
    ),
    "rank_lag_batches": gauge("Batches received and not yet applied.", "rank"),
    "certificate_expiry_timestamp_seconds": gauge(
        "Unix time at which a file of certificates in use is no good any more, by use and file.",
        "use",
        "file",
    ),
    "watchers": gauge("Routers served now."),
    "journal_bytes": gauge("Bytes of deltas kept."),
    "deltas": counter("Deltas written to the journal."),
    "snapshots": counter("Snapshots sent."),
    "cut_off": counter("Watchers ended because they fell behind the journal."),
    "slow": counter("Watchers ended because they read nothing."),
    "yielded": counter("Watchers ended so that a client with fewer places gets one."),
    "redis_state": gauge("1 for the state that the writer is in.", "state"),
    "redis_rebuilds": counter("Times that everything was written again.", "cause"),
    "redis_trouble": gauge(
        "1 while this publisher cannot write to Redis what its pod holds: Redis does not answer or "
        "refuses the write. 0 while it can."
    ),
    "redis_behind_seconds": gauge("Time since the last good write or audit."),
    "redis_batches": counter("Batches of deltas written."),
    "redis_changes": counter("Keys added to Redis and removed from it."),
    "redis_audits": counter("Audits that found every bucket unchanged."),
    "redis_retries": counter("Commands sent again."),
}
"""The metrics, by their names without `warmpath_publisher_`."""


@dataclass(eq=False)
class PublisherCollector(Collector):
    """Reads one pod's cache, its journal, its watchers, and its writer where there is one."""

    cache: PodCache
    server: WatchServer
    writer: Writer | None
    clock: Callable[[], float]
    tls: Sequence[tuple[str, ServerTls | ClientTls | None]] = ()
    """The TLS of each use, by its name; None for plain connections."""

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering does not read every part; the names are unique."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._ranks()
        yield _metric(
            "certificate_expiry_timestamp_seconds",
            [
                ([use, file], at)
                for use, one in self.tls
                for file, at in (expiries(one.pem) if one is not None else ())
            ],
        )
        journal, server = self.cache.journal, self.server
        yield _single("watchers", len(server.places))
        yield _single("journal_bytes", journal.bytes)
        yield _single("deltas", journal.sequence)
        for name in ("snapshots", "cut_off", "slow", "yielded"):
            yield _single(name, getattr(server, name))
        if self.writer is not None:
            yield from self._redis(self.writer)

    def _redis(self, writer: Writer) -> Iterator[Metric]:
        yield _metric("redis_state", [([one], float(writer.state is one)) for one in WriterState])
        counts = writer.counts
        rebuilds = [([one.name.lower()], counts.rebuilds[one]) for one in Cause]
        yield _metric("redis_rebuilds", rebuilds)
        yield _single("redis_trouble", float(bool(writer.trouble)))
        if writer.written_at is not None:
            yield _single("redis_behind_seconds", self.clock() - writer.written_at)
        for name in ("batches", "changes", "audits", "retries"):
            yield _single(f"redis_{name}", getattr(counts, name))

    def _ranks(self) -> Iterator[Metric]:
        ranks = [(str(rank.number), rank) for rank in self.cache.ranks]
        yield _metric(
            "rank_trust",
            [
                ([name, level], float(rank.trust.level is level))
                for name, rank in ranks
                for level in Level
            ],
        )
        yield _metric(
            "rank_blocks",
            [([name, tier], n) for name, rank in ranks for tier, n in rank.blocks().items()],
        )
        yield _metric(
            "events",
            [([name, kind], n) for name, rank in ranks for kind, n in rank.counts().items()],
        )
        orphans = [([name], rank.state.orphans.bytes) for name, rank in ranks]
        yield _metric("rank_orphan_bytes", orphans)
        yield _metric("rank_lag_seconds", [([name], rank.lag.seconds) for name, rank in ranks])
        yield _metric("rank_lag_batches", [([name], rank.lag_batches) for name, rank in ranks])


def _metric(name: str, samples: Iterable[Sample]) -> Family:
    return DECLARED[name].family(f"warmpath_publisher_{name}", samples)


def _single(name: str, value: float) -> Family:
    return _metric(name, [((), value)])
