"""The metrics of picks: bookings, beliefs, reports and the queue; its waits: `router.metrics.calls`.

Also the metrics of tokenising: prefix stores, tokenizers and renderers.
"""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.metrics.declared import counter, gauge, single
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


def texts(of: Texts) -> Iterator[Metric]:
    """Yield the metrics of the parts that turn texts and chats into tokens."""
    stores = [store.stats for store in of.pool.stores.values()]
    for name in ("bytes", "hit_bytes", "missed_bytes", "evictions"):
        yield single(f"prefix_store_{name}", sum(getattr(stats, name) for stats in stores))
    pool = of.pool.stats
    yield single("tokenizer_waiting_prompts", pool.waiting_prompts)
    yield single("tokenizer_waiting_bytes", pool.waiting_bytes)
    yield single("tokenizer_encoded_bytes", pool.encoded_bytes)
    yield single("tokenizer_timeouts", pool.timeouts)
    yield single("tokenizer_refused", pool.refused)
    yield single("tokenizer_failed", pool.failed)
    lost = of.pool.workers.lost
    yield single("tokenizer_lost_threads", lost)
    yield from _loads(of)
    renders = of.renderer.stats
    yield single("renderer_waiting_chats", renders.waiting)
    yield single("renderer_waiting_bytes", renders.waiting_bytes)
    yield single("renderer_chats", renders.rendered)
    yield single("renderer_refused", renders.refused)
    yield single("renderer_replaced", renders.replaced)


def _loads(of: Texts) -> Iterator[Metric]:
    stats = of.tokenizers.stats
    loaded = len(of.tokenizers.loaded())
    yield single("tokenizers_loaded", loaded)
    yield single("tokenizer_loads", stats.loads)
    yield single("tokenizer_load_failures", stats.failures)
    yield single("tokenizer_evictions", stats.evictions)
    asked, failed = counter("tokenizer_engine_requests"), counter("tokenizer_engine_failures")
    fallbacks = counter("tokenizer_fallbacks")
    for model, engine in of.sources.engines.items():
        asked.add_metric([model], engine.asked)
        failed.add_metric([model], engine.failures)
    for model, fallback in of.sources.fallbacks.items():
        fallbacks.add_metric([model], fallback.fallbacks)
    yield from (asked, failed, fallbacks)
