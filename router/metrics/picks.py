"""The metrics of picks: bookings, beliefs, reports and the queue; its waits: `router.metrics.calls`."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.metrics.declared import counter, gauge, single
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pick.picking import Picking
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.step_back import StepBack


def picks(picking: Picking, attribution: Attribution) -> Iterator[Metric]:
    """Yield the metrics of picks, their bookings and their reports."""
    bookings, believed = picking.bookings, picking.believed.stats()
    yield single("bookings", len(bookings))
    yield single("bookings_expired", bookings.expired)
    yield single("first_tokens_missing", bookings.unreported)
    yield single("picks_cancelled", picking.withdrawn)
    yield single("believed_blocks", believed.blocks)
    yield single("believed_max_blocks", believed.max_blocks)
    yield single("sessions", len(picking.sessions))
    if picking.peers is not None:
        yield from _shared_bookings(picking.peers)
    rows = attribution.rows()
    for name in (
        *("requests", "prompt_tokens", "available_tokens", "captured_tokens", "average_tokens"),
        *("reported_requests", "predicted_tokens", "delivered_tokens", "output_tokens"),
    ):
        metric = counter(f"pick_{name}")
        for row in rows:
            metric.add_metric([row.pod, row.model], getattr(row, name))
        yield metric
    yield from _shadows(attribution)


def _shadows(attribution: Attribution) -> Iterator[Metric]:
    for name in ("requests", "prompt_tokens", "chosen_tokens", "warmpath_tokens"):
        metric = counter(f"shadow_{name}")
        for row in attribution.shadows():
            metric.add_metric([row.model], getattr(row, name))
        yield metric


def _shared_bookings(peers: PeerBookings) -> Iterator[Metric]:
    now, received, relay = time.monotonic(), peers.received, peers.relay
    name = "shared_bookings"
    connected = float(peers.is_connected)
    yield single(f"{name}_connected", connected)
    yield single(f"{name}_routers", received.routers(now))
    yield single(f"{name}_oldest_seconds", received.oldest(now))
    yield single(f"{name}_told", peers.writes)
    yield single(f"{name}_failures", peers.failures)
    yield single(f"{name}_malformed", received.malformed)
    for kind in ("handed_on", "received", "dropped", "waiting"):
        yield single(f"{name}_reports_{kind}", getattr(relay, kind))


def queued(held: HeldPicks) -> Iterator[Metric]:
    """Yield the metrics of the queue."""
    queue = held.queue
    waiting = gauge("queue_waiting")
    for name, count in held.waiting().items():
        waiting.add_metric([name], count)
    yield waiting
    yield single("queue_bytes", queue.crowd.bytes)
    yield single("queue_hold_seconds", queue.hold_seconds)
    steps_back, reason = gauge("queue_steps_back"), queue.steps_back
    for one in StepBack:
        steps_back.add_metric([one], one is reason)
    yield steps_back
    yield single("queue_lag_seconds", queue.lag.seconds)
