"""The metrics of ranks: trust, blocks, the event stream, and load."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from indexer.follow.blind import BlindRank
from indexer.follow.rank_ingest import RankIngest
from indexer.ingest import Ingest
from indexer.trust import Level
from router.load.table import LoadTable
from router.metrics.declared import counter, gauge


def ranks(ingest: Ingest) -> Iterator[Metric]:
    """Yield the metrics of every rank's view."""
    trust, blocks = gauge("rank_trust"), gauge("rank_blocks")
    copies, capacity = gauge("rank_copies"), gauge("rank_capacity")
    events = counter("events")
    waiting, dropped = gauge("rank_orphan_bytes"), counter("rank_orphans_dropped")
    lag_seconds, lag_batches = gauge("rank_lag_seconds"), gauge("rank_lag_batches")
    for rank in ingest:
        name = [rank.pod, str(rank.number)]
        if isinstance(rank, RankIngest):
            lag_seconds.add_metric(name, rank.lag.seconds)
            lag_batches.add_metric(name, rank.lag_batches)
            waiting.add_metric(name, rank.state.orphans.bytes)
            dropped.add_metric(name, rank.state.orphans.dropped)
        if not isinstance(rank, BlindRank):
            # Its pod gives no events, so that an alert on `cold` would never end.
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


def loads(ingest: Ingest, table: LoadTable) -> Iterator[Metric]:
    """Yield the load of every rank."""
    names = [(rank.pod, rank.number) for rank in ingest]
    running, waiting = gauge("rank_running"), gauge("rank_waiting")
    wait = gauge("rank_wait_seconds")
    for (pod, rank), load in zip(names, table.loads(names, time.monotonic()), strict=True):
        labels = [pod, str(rank)]
        running.add_metric(labels, load.in_flight)
        waiting.add_metric(labels, load.waiting)
        wait.add_metric(labels, load.wait)
    yield from (running, waiting, wait)
