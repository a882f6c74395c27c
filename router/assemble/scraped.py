"""Reads the metrics that the router's parts keep in plain fields, at each scrape."""

import time
from collections.abc import Iterator, Mapping
from itertools import starmap

from prometheus_client.core import Metric

from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.replica.pod_copy import Resync
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import Level
from warmpath.process.command_line import version
from warmpath.process.metric import Sample
from warmpath.process.tls import ClientTls, ServerTls, expiries
from warmpath.router.assemble.calls import Calls
from warmpath.router.assemble.index import Indexed
from warmpath.router.assemble.means import Means
from warmpath.router.assemble.picks import Picks
from warmpath.router.load.table import LoadTable
from warmpath.router.metrics.declared import metric, single
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.texts import Texts
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.queue import Hindrance
from warmpath.router.readiness import Readiness

RANKS_AT_ONCE = 16
"""Ranks that are read without a pause: about two milliseconds' work."""


def scraped(
    means: Means, indexed: Indexed, of_texts: Texts, chosen: Picks, calls: Calls
) -> Iterator[Metric | None]:
    """Yield the metrics of every part, and None wherever other work may be done before the next one."""
    ingest, admission = indexed.ingest, calls.admission
    yield from means.metrics.collect()
    yield metric("build_info", [([version()], 1)])
    yield from readiness(means.readiness)
    tls = {"server.tls": means.enter.tls, "watch": indexed.publishers, "probe": indexed.engines.tls}
    yield certificates({table: one for table, one in tls.items() if one is not None})
    sources = indexed.states
    yield metric("pod_source_up", [([one.name], float(one.trouble is None)) for one in sources])
    yield metric("pod_source_silence_seconds", [([one.name], one.silence) for one in sources])
    yield ready_pods(indexed.pods)
    yield from ranks(ingest, chosen.picking.loads)
    yield from _demanded(calls)
    stats = ingest.index.stats()
    names = "keys", "entries", "slots", "bytes", "max_bytes"
    yield from _fields("index", stats, *names, evicted_keys="evicted")
    yield from _texts(of_texts)
    intake, held = calls.service.intake, calls.service.picks.held
    rooms = intake.calls, intake.streams
    for name, field in (
        ("bytes", "bytes"),
        ("max_bytes", "limit"),
        ("waiting_calls", "waiting"),
        ("refused", "refused"),
        ("late", "late"),
    ):
        yield single(f"in_flight_{name}", sum(getattr(room, field) for room in rooms))
    yield from _fields("waiting", admission, calls="waiting", max_calls="most_waiting")
    yield single("busy_refused", admission.refused)
    if held is not None:
        yield from _queued(held)
    blind = calls.service.picks.blindness.counts.items()
    yield metric("blind_requests", [([reason], count) for reason, count in blind])
    yield from _picks(chosen)
    if (feed := calls.feed) is not None:
        yield metric("shadow_log_lines", [([one], count) for one, count in feed.counts.items()])
    yield from _fields(
        "endpoint_picker", calls.endpoint_picker, "streams", "held_bytes", "max_held_bytes"
    )
    entries = calls.answers.counts.items()
    yield metric("access_log_entries", [([one], count) for one, count in entries])
    if (passed := chosen.passed_on) is not None:
        counts = (["taken"], passed.taken), (["lost"], passed.lost)
        yield metric("reports_passed_on", counts)
    replica = indexed.ingest.replica
    readers = [one for one in (replica, ingest.remote) if one is not None]
    if readers:
        polled = min(one.polled_at for one in readers)
        yield single("shared_index_poll_age_seconds", time.monotonic() - polled)
    if replica is not None:
        yield from _copies(replica)
    if ingest.remote is not None:
        yield from _look_ups(ingest.remote)


def _fields(room: str, of: object, *names: str, **renamed: str) -> Iterator[Metric]:
    """Yield figures that are fields of a part: of the same name, or `renamed`, by the figure's name."""
    for name, field in {**dict(zip(names, names, strict=True)), **renamed}.items():
        yield single(f"{room}_{name}", getattr(of, field))


def readiness(router: Readiness) -> Iterator[Metric]:
    """Yield whether the router is ready, and whether each condition holds."""
    yield single("ready", float(router.ready()))
    conditions = (
        ([name, "true" if router.requires(name) else "false"], float(condition.holds))
        for name, condition in router.report().items()
    )
    yield metric("ready_condition", conditions)


def certificates(tables: Mapping[str, ServerTls | ClientTls]) -> Metric:
    """Return when certificates end, by table of the configuration and file (Unix time, seconds)."""
    ends = (([table, file], at) for table, tls in tables.items() for file, at in expiries(tls.pem))
    return metric("certificate_expiry_timestamp_seconds", ends)


def ready_pods(pods: PodTable) -> Metric:
    """Return whether each pod is ready."""
    ready = (([pod.id, pod.model], float(pod.serves and not pod.status.refuses)) for pod in pods)
    return metric("pod_ready", ready)


def _demanded(calls: Calls) -> Iterator[Metric]:
    rows = calls.demand.rows.items()
    for name, field in (
        ("saturation", "saturation"),
        ("wait_seconds", "wait_seconds"),
        ("pods_needed", "pods"),
    ):
        yield metric(f"engine_{name}", [([*kind], getattr(row, field)) for kind, row in rows])
    counts = calls.cold_starts.counts().items()
    yield metric("engine_awaited_requests", [([model], count) for model, count in counts])


def ranks(ingest: Ingest, loads: LoadTable) -> Iterator[Metric | None]:
    """Yield metrics of ranks' views and loads; before them a None wherever other work may be done."""
    names = (
        *("trust", "blocks", "copies", "capacity", "orphan_bytes", "orphans_dropped"),
        *("lag_seconds", "lag_batches", "running", "waiting", "wait_seconds", "stuck_seconds"),
        *("engine_running", "engine_waiting", "engine_kv_usage"),
    )
    samples: dict[str, list[Sample]] = {"events": []}
    samples |= ((f"rank_{name}", []) for name in names)
    for number, rank in enumerate(ingest, 1):
        if not number % RANKS_AT_ONCE:
            yield None
        now = time.monotonic()
        load = loads.load(rank.pod, rank.number, now)
        labels = rank.pod, str(rank.number)
        figures: dict[str, float | None] = {
            "running": load.in_flight,
            "waiting": load.waiting,
            "wait_seconds": load.wait,
            "stuck_seconds": loads.stuck_seconds(rank.pod, rank.number, now),
            "copies": rank.blocks_in_use(),
            "capacity": rank.capacity or None,
        }
        if (seen := loads.observed(rank.pod, rank.number, now)) is not None:
            figures |= {
                "engine_running": seen.running,
                "engine_waiting": seen.waiting,
                "engine_kv_usage": seen.kv_usage,
            }
        if (orphans := rank.orphans) is not None:
            figures |= {
                "lag_seconds": rank.lag_seconds,
                "lag_batches": rank.lag_batches,
                "orphan_bytes": orphans.bytes,
                "orphans_dropped": orphans.dropped,
            }
        for name, figure in figures.items():
            if figure is not None:
                samples[f"rank_{name}"].append((labels, figure))
        if rank.has_events:
            # Its pod gives no events, so that an alert on `cold` would never end.
            level = rank.trust.level
            samples["rank_trust"] += (((*labels, one), float(level is one)) for one in Level)
        blocks = rank.blocks().items()
        samples["rank_blocks"] += (((*labels, tier), count) for tier, count in blocks)
        samples["events"] += (((*labels, kind), count) for kind, count in rank.counts().items())
    yield from starmap(metric, samples.items())


def _texts(of: Texts) -> Iterator[Metric]:
    stores = [store.stats for store in of.pool.stores.values()]
    for name in ("bytes", "hit_bytes", "missed_bytes", "evictions"):
        yield single(f"prefix_store_{name}", sum(getattr(stats, name) for stats in stores))
    for part, things, waiting in (
        ("tokenizer", "prompts", of.pool.waiting),
        ("renderer", "chats", of.renderer.waiting),
    ):
        count = {f"waiting_{things}": "count", "waiting_bytes": "bytes"}
        yield from _fields(part, waiting, "refused", **count)
    yield from _fields("tokenizer", of.pool, "encoded_bytes", "timeouts", "failed")
    yield single("tokenizer_compared", of.pool.rechecks.made)
    yield single("tokenizer_disagreements", len(of.pool.rechecks.disagreements))
    yield single("tokenizer_lost_threads", of.pool.workers.lost + of.pool.asking.lost)
    yield single("tokenizers_loaded", len(of.tokenizers.loaded()))
    yield from _fields("tokenizer", of.tokenizers, "loads", "load_failures", "evictions")
    engines = of.sources.engines.items()
    for kind, field in (("requests", "asked"), ("failures", "failures")):
        figures = [([model], getattr(engine, field)) for model, engine in engines]
        yield metric(f"tokenizer_engine_{kind}", figures)
    fallbacks = of.sources.fallbacks.items()
    yield metric("tokenizer_fallbacks", [([model], one.fallbacks) for model, one in fallbacks])
    yield from _fields("renderer", of.renderer, "replaced", chats="rendered")


def _picks(chosen: Picks) -> Iterator[Metric]:
    picking = chosen.picking
    bookings = picking.bookings
    yield single("bookings", len(bookings))
    yield single("bookings_expired", bookings.expired)
    yield single("first_tokens_missing", bookings.unreported)
    yield single("picks_cancelled", picking.picker.withdrawn)
    yield single("decisions_lost", chosen.logged.lost if chosen.logged else 0)
    yield single("believed_blocks", len(picking.believed))
    yield single("believed_max_blocks", picking.believed.max_blocks)
    if picking.peers is not None:
        yield from _shared_bookings(picking.peers)
    rows = chosen.attribution.rows()
    for name in (
        *("requests", "prompt_tokens", "available_tokens", "captured_tokens", "average_tokens"),
        *("reported_requests", "predicted_tokens", "delivered_tokens", "output_tokens"),
    ):
        yield metric(f"pick_{name}", [([row.pod, row.model], getattr(row, name)) for row in rows])
    clients = [((one.model, one.name, one.tenant), one) for one in chosen.attribution.clients]
    for name in (
        *("prompt_tokens", "captured_tokens", "average_tokens", "saved_seconds"),
        *("predicted_tokens", "delivered_tokens", "compared_tokens", "spoiled_tokens"),
    ):
        yield metric(f"client_{name}", [(labels, getattr(one, name)) for labels, one in clients])
    shadows = chosen.attribution.shadow.rows()
    for name in ("requests", "prompt_tokens", "chosen_tokens", "warmpath_tokens"):
        yield metric(f"shadow_{name}", [([row.model], getattr(row, name)) for row in shadows])
    yield metric("shadow_better_requests", [([row.model], row.better) for row in shadows])
    saved = [
        ([row.model, q], value)
        for row in shadows
        for q, value in (("0.5", row.saved_p50), ("0.9", row.saved_p90))
    ]
    yield metric("shadow_saved_seconds", saved)


def _shared_bookings(peers: PeerBookings) -> Iterator[Metric]:
    now, received = time.monotonic(), peers.received
    name = "shared_bookings"
    yield single(f"{name}_connected", float(peers.is_connected))
    yield single(f"{name}_routers", len(received.alive(now)))
    yield single(f"{name}_oldest_seconds", received.oldest(now))
    yield from _fields(name, peers, "failures", told="writes")
    yield from _fields(name, received, "malformed")
    kinds = "handed_on", "received", "dropped", "waiting"
    yield from _fields(f"{name}_reports", peers.relay, *kinds)


def _queued(held: HeldPicks) -> Iterator[Metric]:
    queue = held.queue
    yield metric("queue_waiting", [([name], count) for name, count in held.waiting().items()])
    yield single("queue_bytes", queue.crowd.bytes)
    yield single("queue_hold_seconds", queue.hold_seconds)
    reason = queue.hindrance
    yield metric("queue_steps_back", [([one], one is reason) for one in Hindrance])
    yield single("queue_lag_seconds", queue.lag.seconds)


def _copies(replica: Replica) -> Iterator[Metric]:
    name = "shared_index"
    yield single(f"{name}_disruptions", replica.redis.disruptions)
    yield single(f"{name}_log_entries", replica.counts.entries)
    counts = replica.counts.resyncs
    yield metric(f"{name}_resyncs", [([why], counts[why]) for why in Resync])
    yield metric(f"{name}_lag_deltas", [([pod], lag) for pod, lag in replica.lags().items()])


def _look_ups(remote: RemoteIndex) -> Iterator[Metric]:
    """Yield the metrics of prompts for which shared mode asks Redis."""
    name, copy = "shared_index", remote.copy
    yield from _fields(
        name,
        remote,
        *("look_ups", "reads", "read_seconds", "read_bytes", "timeouts", "errors", "late"),
        *("old_answers", "unknown_slots"),
    )
    counts = {"hits": "hits", "misses": "misses", "evictions": "evicted"}
    yield from _fields(f"{name}_copy", copy, "bytes", "max_bytes", **counts)
    yield single(f"{name}_copy_segments", len(copy))
    yield from _fields(name, remote.reach, "openings", "open_buckets")
    yield from _fields(name, remote.lives, "losses")
