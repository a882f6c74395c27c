"""The metrics of picks: bookings, beliefs, reports and the queue; its waits: `router.metrics.calls`."""

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from router.diagnosis.attribution import Attribution
from router.metrics.unlabelled import counter, gauge
from router.peers.exchange import PeerBookings
from router.pick.picking import Picking
from router.queue.held_picks import HeldPicks


def picks(picking: Picking, attribution: Attribution) -> Iterator[Metric]:
    """Yield the metrics of picks, their bookings and their reports."""
    bookings, believed = picking.bookings, picking.believed.stats()
    yield gauge("warmpath_bookings", "Picked requests that have not ended.", len(bookings))
    yield counter(
        "warmpath_bookings_expired", "Bookings whose end was never reported.", bookings.expired
    )
    yield counter(
        "warmpath_first_tokens_missing",
        "Requests that did not fail and whose first token was never reported.",
        bookings.unreported,
    )
    gone = "Picks whose caller was gone before the answer."
    yield counter("warmpath_picks_cancelled", gone, picking.withdrawn)
    yield gauge("warmpath_believed_blocks", "Believed blocks.", believed.blocks)
    yield gauge("warmpath_believed_max_blocks", "Most believed blocks.", believed.max_blocks)
    yield gauge("warmpath_sessions", "Sessions remembered.", len(picking.sessions))
    if picking.peers is not None:
        yield from _shared_bookings(picking.peers)
    for name, help_text in (
        ("requests", "Picks of the pod."),
        ("prompt_tokens", "Tokens of their prompts."),
        ("available_tokens", "Prompt tokens held by the candidate that held most."),
        ("captured_tokens", "Prompt tokens held by the pod."),
        ("average_tokens", "Prompt tokens held by the candidates on average."),
        ("reported_requests", "Picks whose report has the engine's cached tokens."),
        ("predicted_tokens", "Cached tokens predicted for the reported requests."),
        ("delivered_tokens", "Cached tokens that the engine found for the reported requests."),
        ("output_tokens", "Tokens of the answers, as reported."),
    ):
        metric = CounterMetricFamily(f"warmpath_pick_{name}", help_text, labels=["pod", "model"])
        for row in attribution.rows():
            metric.add_metric([row.pod, row.model], getattr(row, name))
        yield metric
    yield from _shadows(attribution)


def _shadows(attribution: Attribution) -> Iterator[Metric]:
    for name, help_text in (
        ("requests", "Shadow picks whose pod the caller reported."),
        ("prompt_tokens", "Tokens of their prompts."),
        ("chosen_tokens", "Prompt tokens held by the pods that callers chose."),
        ("warmpath_tokens", "Prompt tokens held by the pods that warmpath would have chosen."),
    ):
        metric = CounterMetricFamily(f"warmpath_shadow_{name}", help_text, labels=["model"])
        for row in attribution.shadows():
            metric.add_metric([row.model], getattr(row, name))
        yield metric


def _shared_bookings(peers: PeerBookings) -> Iterator[Metric]:
    now, received, relay = time.monotonic(), peers.received, peers.relay
    name = "warmpath_shared_bookings"
    connected = float(peers.is_connected)
    yield gauge(f"{name}_connected", "1 if Redis answered the last round.", connected)
    yield gauge(
        f"{name}_routers", "Other routers whose bookings count here.", received.routers(now)
    )
    yield gauge(
        f"{name}_oldest_seconds", "Age of the oldest of these bookings.", received.oldest(now)
    )
    yield counter(f"{name}_told", "Times that this router wrote its bookings.", peers.writes)
    yield counter(f"{name}_failures", "Rounds with an error of Redis.", peers.failures)
    yield counter(f"{name}_malformed", "Invalid values of other routers.", received.malformed)
    for kind, help_text, count in (
        ("handed_on", "Reports handed on to the router with the booking.", relay.handed_on),
        ("received", "Reports of own bookings received from other routers.", relay.received),
        ("dropped", "Reports whose router disappeared before they were handed on.", relay.dropped),
    ):
        yield counter(f"{name}_reports_{kind}", help_text, count)


def queued(held: HeldPicks) -> Iterator[Metric]:
    """Yield the metrics of the queue."""
    queue = held.queue
    waiting = GaugeMetricFamily(
        "warmpath_queue_waiting", "Picks that wait in the queue.", labels=["class"]
    )
    for name, count in held.waiting().items():
        waiting.add_metric([name], count)
    yield waiting
    yield gauge("warmpath_queue_bytes", "Bytes of the picks that wait.", queue.bytes)
    yield gauge(
        "warmpath_queue_hold_seconds",
        "Booked prefill up to which a rank has room; infinite: no pick waits.",
        queue.hold_seconds,
    )
    yield gauge(
        "warmpath_queue_lag_seconds",
        "How much later first tokens are reported than predicted.",
        queue.lag.seconds,
    )
