"""The metrics of the shared index: copies, writers and look-ups."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from indexer.shared.query.index import RemoteIndex
from indexer.shared.replica.pod_copy import Resync
from indexer.shared.replica.run import Replica
from indexer.shared.writer.machine import Writer
from indexer.shared.writer.steps import Cause, WriterState
from router.metrics.unlabelled import counter, gauge


def copies(replica: Replica) -> Iterator[Metric]:
    """Yield the metrics of the copies that replica mode keeps."""
    name = "warmpath_shared_index"
    polled = replica.polled_at
    if polled is not None:
        age = time.monotonic() - polled
        yield gauge(f"{name}_poll_age_seconds", "Time since all pods were last polled.", age)
    lost = replica.redis.disruptions
    yield counter(f"{name}_disruptions", "Times that a Redis node was lost or reached anew.", lost)
    yield counter(f"{name}_log_entries", "Journal entries applied.", replica.entries())
    resyncs = CounterMetricFamily(
        f"{name}_resyncs", "Times that a pod's blocks were read anew.", labels=["reason"]
    )
    counts = replica.resyncs()
    for why in Resync:
        resyncs.add_metric([why], counts[why])
    lags = GaugeMetricFamily(
        f"{name}_lag_deltas", "Deltas in a pod's record that its copy lacks.", labels=["pod"]
    )
    for pod, lag in replica.lags().items():
        lags.add_metric([pod], lag)
    yield from (resyncs, lags)


def written(writers: Mapping[str, Writer]) -> Iterator[Metric]:
    """Yield the metrics of the pods that this router writes to Redis."""
    name = "warmpath_shared_index_writer"
    state = GaugeMetricFamily(f"{name}_state", "1 for the state in force.", labels=["pod", "state"])
    trouble = GaugeMetricFamily(f"{name}_trouble", "1 while Redis does not answer.", labels=["pod"])
    rebuilds = CounterMetricFamily(
        f"{name}_rebuilds",
        "Times that a pod's blocks were all written anew.",
        labels=["pod", "cause"],
    )
    done = [
        CounterMetricFamily(f"{name}_{what}", help_text, labels=["pod"])
        for what, help_text in (
            ("batches", "Batches of deltas written."),
            ("changes", "Keys added to Redis and removed from it."),
            ("audits", "Audits that found every bucket unchanged."),
            ("retries", "Commands sent again."),
        )
    ]
    for pod, writer in sorted(dict(writers).items()):
        counts = writer.counts
        for one in WriterState:
            state.add_metric([pod, one], float(writer.state is one))
        trouble.add_metric([pod], float(bool(writer.trouble)))
        for cause in Cause:
            rebuilds.add_metric([pod, cause.name.lower()], counts.rebuilds[cause])
        figures = counts.batches, counts.changes, counts.audits, counts.retries
        for metric, figure in zip(done, figures, strict=True):
            metric.add_metric([pod], figure)
    yield from (state, trouble, rebuilds, *done)


def look_ups(remote: RemoteIndex) -> Iterator[Metric]:
    """Yield the metrics of prompts for which shared mode asks Redis."""
    name, copy = "warmpath_shared_index", remote.copy
    for what, help_text, count in (
        ("look_ups", "Prompts for which Redis was asked.", remote.look_ups),
        ("reads", "Reads from Redis.", remote.reads),
        ("read_seconds", "Total time of the reads.", remote.read_seconds),
        ("read_bytes", "Bytes that the reads returned.", remote.read_bytes),
        ("timeouts", "Reads that did not end in time.", remote.timeouts),
        ("errors", "Reads that failed otherwise, in part or in full.", remote.errors),
        ("late", "Prompts answered before their reads had ended.", remote.late),
        ("old_answers", "Answers made of an incomplete or outdated copy.", remote.old_answers),
        (
            "unknown_slots",
            "Stretches of blocks whose slot belongs to no known rank.",
            remote.unknown_slots,
        ),
        ("copy_hits", "Segments found in the router's copy.", copy.hits),
        ("copy_misses", "Segments not found in the router's copy.", copy.misses),
        ("copy_evictions", "Segments evicted from the copy.", copy.evicted),
        ("openings", "Times that a bucket was left alone after failures.", remote.reach.openings),
        ("losses", "Times that buckets were found lost or made anew.", remote.births.losses),
    ):
        yield counter(f"{name}_{what}", help_text, count)
    yield gauge(f"{name}_copy_segments", "Segments in the copy.", len(copy))
    yield gauge(f"{name}_copy_bytes", "Bytes of the copy.", copy.bytes)
    yield gauge(f"{name}_copy_max_bytes", "Most bytes of the copy.", copy.max_bytes)
    left_alone = remote.reach.open_buckets
    yield gauge(f"{name}_open_buckets", "Buckets left alone now.", left_alone)
