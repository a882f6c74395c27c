"""The metrics of ranks: trust, blocks, the event stream, and load.

Also the metrics of the shared index: copies and look-ups.
"""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.replica.pod_copy import Resync
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import Level
from warmpath.router.load.table import LoadTable
from warmpath.router.metrics.declared import metric, single

RANKS_AT_ONCE = 32
"""Ranks that are read without a pause: about two milliseconds' work."""


def ranks(ingest: Ingest) -> Iterator[Metric | None]:
    """Yield the metrics of every rank's view, and before them a None wherever other work may be done."""
    trust, blocks = metric("rank_trust"), metric("rank_blocks")
    copies, capacity = metric("rank_copies"), metric("rank_capacity")
    events = metric("events")
    waiting, dropped = metric("rank_orphan_bytes"), metric("rank_orphans_dropped")
    lag_seconds, lag_batches = metric("rank_lag_seconds"), metric("rank_lag_batches")
    for number, rank in enumerate(ingest, 1):
        if not number % RANKS_AT_ONCE:
            yield None
        name = [rank.pod, str(rank.number)]
        if (orphans := rank.orphans) is not None:
            lag_seconds.add_metric(name, rank.lag_seconds)
            lag_batches.add_metric(name, rank.lag_batches)
            waiting.add_metric(name, orphans.bytes)
            dropped.add_metric(name, orphans.dropped)
        if rank.has_events:
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


def loads(ingest: Ingest, table: LoadTable) -> Iterator[Metric | None]:
    """Yield the load of every rank, and before that a None wherever other work may be done."""
    names = [RankName(rank.pod, rank.number) for rank in ingest]
    running, waiting = metric("rank_running"), metric("rank_waiting")
    wait, stuck = metric("rank_wait_seconds"), metric("rank_stuck_seconds")
    for at in range(0, len(names), RANKS_AT_ONCE):
        now = time.monotonic()
        for pod, rank in names[at : at + RANKS_AT_ONCE]:
            load = table.load(pod, rank, now)
            labels = [pod, str(rank)]
            running.add_metric(labels, load.in_flight)
            waiting.add_metric(labels, load.waiting)
            wait.add_metric(labels, load.wait)
            stuck.add_metric(labels, table.stuck_seconds(pod, rank, now))
        yield None
    yield from (running, waiting, wait, stuck)


def copies(replica: Replica) -> Iterator[Metric]:
    """Yield the metrics of the copies of pods."""
    name = "shared_index"
    yield single(f"{name}_disruptions", replica.redis.disruptions)
    yield single(f"{name}_log_entries", replica.entries())
    counts = replica.resyncs()
    yield metric(f"{name}_resyncs", [([why], counts[why]) for why in Resync])
    yield metric(f"{name}_lag_deltas", [([pod], lag) for pod, lag in replica.lags().items()])


def look_ups(remote: RemoteIndex) -> Iterator[Metric]:
    """Yield the metrics of prompts for which shared mode asks Redis."""
    name, copy = "shared_index", remote.copy
    for what in (
        *("look_ups", "reads", "read_seconds", "read_bytes", "timeouts", "errors", "late"),
        *("old_answers", "unknown_slots"),
    ):
        yield single(f"{name}_{what}", getattr(remote, what))
    for what, count in (
        ("copy_hits", copy.hits),
        ("copy_misses", copy.misses),
        ("copy_evictions", copy.evicted),
        ("openings", remote.reach.openings),
        ("losses", remote.lives.losses),
        ("copy_segments", len(copy)),
        ("copy_bytes", copy.bytes),
        ("copy_max_bytes", copy.max_bytes),
        ("open_buckets", remote.reach.open_buckets),
    ):
        yield single(f"{name}_{what}", count)


def poll_age(*readers: Replica | RemoteIndex | None) -> Iterator[Metric]:
    """Yield the longest time since Redis last answered one of these readers, if there are any."""
    polled = [reader.polled_at for reader in readers if reader is not None]
    if polled:
        yield single("shared_index_poll_age_seconds", time.monotonic() - min(polled))
