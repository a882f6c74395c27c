"""The metrics of the shared index: copies, writers and look-ups."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.replica.pod_copy import Resync
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.steps import Cause, WriterState
from warmpath.router.metrics.declared import counter, gauge, single
from warmpath.router.pods.own_view import OwnView


def copies(replica: Replica) -> Iterator[Metric]:
    """Yield the metrics of the copies of pods."""
    name = "shared_index"
    lost = replica.redis.disruptions
    yield single(f"{name}_disruptions", lost)
    yield single(f"{name}_log_entries", replica.entries())
    resyncs = counter(f"{name}_resyncs")
    counts = replica.resyncs()
    for why in Resync:
        resyncs.add_metric([why], counts[why])
    lags = gauge(f"{name}_lag_deltas")
    for pod, lag in replica.lags().items():
        lags.add_metric([pod], lag)
    yield from (resyncs, lags)


def written(views: Mapping[str, OwnView]) -> Iterator[Metric]:
    """Yield the metrics of the pods that this router writes to Redis."""
    name = "shared_index_writer"
    state, trouble = gauge(f"{name}_state"), gauge(f"{name}_trouble")
    own = gauge("shared_index_own_view")
    rebuilds = counter(f"{name}_rebuilds")
    done = [counter(f"{name}_{what}") for what in ("batches", "changes", "audits", "retries")]
    for pod, view in sorted(dict(views).items()):
        for rank, is_own in view.answers().items():
            own.add_metric([pod, str(rank)], float(is_own))
        writer = view.writer
        counts = writer.counts
        for one in WriterState:
            state.add_metric([pod, one], float(writer.state is one))
        trouble.add_metric([pod], float(bool(writer.trouble)))
        for cause in Cause:
            rebuilds.add_metric([pod, cause.name.lower()], counts.rebuilds[cause])
        figures = counts.batches, counts.changes, counts.audits, counts.retries
        for metric, figure in zip(done, figures, strict=True):
            metric.add_metric([pod], figure)
    yield from (own, state, trouble, rebuilds, *done)


def look_ups(remote: RemoteIndex) -> Iterator[Metric]:
    """Yield the metrics of prompts for which shared mode asks Redis."""
    name, copy = "shared_index", remote.copy
    for what, count in (
        ("look_ups", remote.look_ups),
        ("reads", remote.reads),
        ("read_seconds", remote.read_seconds),
        ("read_bytes", remote.read_bytes),
        ("timeouts", remote.timeouts),
        ("errors", remote.errors),
        ("late", remote.late),
        ("old_answers", remote.old_answers),
        ("unknown_slots", remote.unknown_slots),
        ("copy_hits", copy.hits),
        ("copy_misses", copy.misses),
        ("copy_evictions", copy.evicted),
        ("openings", remote.reach.openings),
        ("losses", remote.lives.losses),
    ):
        yield single(f"{name}_{what}", count)
    yield single(f"{name}_copy_segments", len(copy))
    yield single(f"{name}_copy_bytes", copy.bytes)
    yield single(f"{name}_copy_max_bytes", copy.max_bytes)
    left_alone = remote.reach.open_buckets
    yield single(f"{name}_open_buckets", left_alone)


def poll_age(*readers: Replica | RemoteIndex | None) -> Iterator[Metric]:
    """Yield the longest time since Redis last answered one of these readers, if there are any."""
    polled = [reader.polled_at for reader in readers if reader is not None]
    if polled:
        yield single("shared_index_poll_age_seconds", time.monotonic() - min(polled))
