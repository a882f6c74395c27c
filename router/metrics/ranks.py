"""The metrics of ranks: trust, blocks and the event stream."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from indexer.follow.rank_ingest import RankIngest
from indexer.ingest import Ingest
from indexer.trust import Level


def ranks(ingest: Ingest) -> Iterator[Metric]:
    """Yield the metrics of every rank."""
    rank_labels = ["pod", "rank"]
    trust = GaugeMetricFamily(
        "warmpath_rank_trust", "1 for the level in force.", labels=[*rank_labels, "level"]
    )
    blocks = GaugeMetricFamily(
        "warmpath_rank_blocks", "Distinct blocks held.", labels=[*rank_labels, "tier"]
    )
    copies = GaugeMetricFamily(
        "warmpath_rank_copies", "Blocks of the fastest tier that are taken.", labels=rank_labels
    )
    capacity = GaugeMetricFamily(
        "warmpath_rank_capacity",
        "All blocks of the fastest tier, if known.",
        labels=rank_labels,
    )
    events = CounterMetricFamily(
        "warmpath_events",
        "Events, and troubles of the event stream, by kind.",
        labels=[*rank_labels, "kind"],
    )
    waiting = GaugeMetricFamily(
        "warmpath_rank_orphan_bytes",
        "Bytes of stored blocks whose parent was never announced.",
        labels=rank_labels,
    )
    dropped = CounterMetricFamily(
        "warmpath_rank_orphans_dropped",
        "Stored blocks without a parent that were dropped for lack of room.",
        labels=rank_labels,
    )
    lag_seconds = GaugeMetricFamily(
        "warmpath_rank_lag_seconds",
        "Age of the last batch when it was applied, by the engine's clock.",
        labels=rank_labels,
    )
    lag_batches = GaugeMetricFamily(
        "warmpath_rank_lag_batches", "Batches received and not yet applied.", labels=rank_labels
    )
    for rank in ingest:
        name = [rank.pod, str(rank.number)]
        if isinstance(rank, RankIngest):
            lag_seconds.add_metric(name, rank.lag.seconds)
            lag_batches.add_metric(name, rank.lag_batches)
            waiting.add_metric(name, rank.state.orphans.bytes)
            dropped.add_metric(name, rank.state.orphans.dropped)
        for level in Level:
            trust.add_metric([*name, level], float(rank.trust.level is level))
        for tier, count in rank.blocks().items():
            blocks.add_metric([*name, tier], count)
        in_use = rank.blocks_in_use()
        if in_use is not None:
            copies.add_metric(name, in_use)
        if rank.capacity:
            capacity.add_metric(name, rank.capacity)
        for kind, count in rank.counts().items():
            events.add_metric([*name, kind], count)
    yield from (trust, blocks, copies, capacity, events, waiting, dropped)
    yield from (lag_seconds, lag_batches)
