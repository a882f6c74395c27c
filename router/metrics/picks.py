"""The metrics of picks: bookings, beliefs, reports and the queue; its waits: `router.metrics.calls`.

Also the metrics of tokenising: prefix stores, tokenizers and renderers.
"""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.metrics.declared import metric, single
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pick.picking import Picking
from warmpath.router.prompt.texts import Texts
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.lag import StepBack


def picks(picking: Picking, attribution: Attribution) -> Iterator[Metric]:
    """Yield the metrics of picks, their bookings and their reports."""
    bookings, believed = picking.bookings, picking.believed.stats()
    yield single("bookings", len(bookings))
    yield single("bookings_expired", bookings.expired)
    yield single("first_tokens_missing", bookings.unreported)
    yield single("picks_cancelled", picking.picker.withdrawn)
    yield single("believed_blocks", believed.blocks)
    yield single("believed_max_blocks", believed.max_blocks)
    if picking.peers is not None:
        yield from _shared_bookings(picking.peers)
    rows = attribution.rows()
    for name in (
        *("requests", "prompt_tokens", "available_tokens", "captured_tokens", "average_tokens"),
        *("reported_requests", "predicted_tokens", "delivered_tokens", "output_tokens"),
    ):
        yield metric(f"pick_{name}", [([row.pod, row.model], getattr(row, name)) for row in rows])
    shadows = attribution.shadows()
    for name in ("requests", "prompt_tokens", "chosen_tokens", "warmpath_tokens"):
        yield metric(f"shadow_{name}", [([row.model], getattr(row, name)) for row in shadows])


def _shared_bookings(peers: PeerBookings) -> Iterator[Metric]:
    now, received, relay = time.monotonic(), peers.received, peers.relay
    name = "shared_bookings"
    yield single(f"{name}_connected", float(peers.is_connected))
    yield single(f"{name}_routers", len(received.alive(now)))
    yield single(f"{name}_oldest_seconds", received.oldest(now))
    yield single(f"{name}_told", peers.writes)
    yield single(f"{name}_failures", peers.failures)
    yield single(f"{name}_malformed", received.malformed)
    for kind in ("handed_on", "received", "dropped", "waiting"):
        yield single(f"{name}_reports_{kind}", getattr(relay, kind))


def queued(held: HeldPicks) -> Iterator[Metric]:
    """Yield the metrics of the queue."""
    queue = held.queue
    yield metric("queue_waiting", [([name], count) for name, count in held.waiting().items()])
    yield single("queue_bytes", queue.crowd.bytes)
    yield single("queue_hold_seconds", queue.hold_seconds)
    reason = queue.steps_back
    yield metric("queue_steps_back", [([one], one is reason) for one in StepBack])
    yield single("queue_lag_seconds", queue.lag.seconds)


def texts(of: Texts) -> Iterator[Metric]:
    """Yield the metrics of the parts that turn texts and chats into tokens."""
    stores = [store.stats for store in of.pool.stores.values()]
    for name in ("bytes", "hit_bytes", "missed_bytes", "evictions"):
        yield single(f"prefix_store_{name}", sum(getattr(stats, name) for stats in stores))
    for part, things, waiting in (
        ("tokenizer", "prompts", of.pool.waiting),
        ("renderer", "chats", of.renderer.waiting),
    ):
        yield single(f"{part}_waiting_{things}", waiting.count)
        yield single(f"{part}_waiting_bytes", waiting.bytes)
        yield single(f"{part}_refused", waiting.refused)
    for name in ("encoded_bytes", "timeouts", "failed"):
        yield single(f"tokenizer_{name}", getattr(of.pool, name))
    yield single("tokenizer_lost_threads", of.pool.workers.lost)
    yield single("tokenizers_loaded", len(of.tokenizers.loaded()))
    for name in ("loads", "load_failures", "evictions"):
        yield single(f"tokenizer_{name}", getattr(of.tokenizers, name))
    engines = of.sources.engines.items()
    for kind, field in (("requests", "asked"), ("failures", "failures")):
        figures = [([model], getattr(engine, field)) for model, engine in engines]
        yield metric(f"tokenizer_engine_{kind}", figures)
    fallbacks = of.sources.fallbacks.items()
    yield metric("tokenizer_fallbacks", [([model], one.fallbacks) for model, one in fallbacks])
    yield single("renderer_chats", of.renderer.rendered)
    yield single("renderer_replaced", of.renderer.replaced)
