"""Every metric of the router: name, unit, labels and what bounds them.

One file declares them all, however long it becomes, so that names and labels are compared at a glance.
Label values are the known pods, ranks and models, and names that the code or the contract defines
(tiers, methods, statuses, …). No prompt, hash or request id is ever a label. Parts count in plain
fields, which are read at each scrape.
"""

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from indexer.follow.rank_ingest import RankIngest
from indexer.ingest import Ingest
from indexer.shared.query.index import RemoteIndex
from indexer.shared.replica.pod_copy import Resync
from indexer.shared.replica.run import Replica
from indexer.shared.writer.machine import Writer
from indexer.shared.writer.steps import Cause, WriterState
from indexer.trust import Level
from router.api.admission import Admission
from router.api.in_flight import InFlight
from router.diagnosis.attribution import Attribution
from router.endpoint_picker.service import EndpointPickerService
from router.peers.exchange import PeerBookings
from router.pick.picking import Picking
from router.pods.shared_index import SharedPods
from router.prompt.tokenising.assemble import Texts
from router.queue.held_picks import HeldPicks

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
TOKENS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
WAITS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Tally:
    """Counts values by upper bounds, and their sum: a histogram."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def show(self, metric: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add what was counted to a metric."""
        bounds = [*map(float, self._bounds), math.inf]
        counts = accumulate(self._counts)
        names = map(cast("Callable[[float], str]", floatToGoString), bounds)
        buckets = list(zip(names, counts, strict=True))
        metric.add_metric(labels, buckets, self._sum)


class Metrics(Collector):
    """The metrics that are counted as things happen, in plain fields where that is for every call."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests: dict[tuple[str, str], int] = defaultdict(int)
        self._seconds: dict[str, Tally] = {}
        self._tokens = Tally(TOKENS)
        self._matched = Tally(SHARES)
        self._kept_out = Counter(
            "warmpath_kept_out",
            "Calls refused because the caller is not known, or lacks the role.",
            ["asked", "why"],  # methods and paths that need a role; unknown, role
            registry=registry,
        )
        self._endpoint_picks = Counter(
            "warmpath_endpoint_picks",
            "Gateways' requests for a pick, by outcome.",
            ["outcome"],  # router.endpoint_picker.outcomes
            registry=registry,
        )
        self._queued = Histogram(
            "warmpath_queue_wait_seconds",
            "Time that picks waited in the queue, by class and by what became of them.",
            ["class", "outcome"],  # queue.classes; sent, refused, left
            buckets=WAITS,
            registry=registry,
        )
        self._lag = Histogram(
            "warmpath_loop_lag_seconds",
            "By how much the event loop that answers calls woke up late.",
            buckets=LAGS,
            registry=registry,
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of calls."""
        requests = CounterMetricFamily(
            "warmpath_requests",
            "Answered calls.",
            labels=["method", "code"],  # the contract's methods, gRPC's statuses
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        seconds = HistogramMetricFamily(
            "warmpath_request_seconds",
            "Time from a call's arrival to its answer.",
            labels=["method"],
        )
        for method, tally in self._seconds.items():
            tally.show(seconds, [method])
        tokens = HistogramMetricFamily("warmpath_prompt_tokens", "Tokens of a scored prompt.")
        self._tokens.show(tokens)
        matched = HistogramMetricFamily(
            "warmpath_matched_ratio", "Share of a scored prompt that the warmest pod holds."
        )
        self._matched.show(matched)
        yield from (requests, seconds, tokens, matched)

    def answered(self, method: str, code: str, seconds: float) -> None:
        """Count one answer."""
        self._requests[method, code] += 1
        tally = self._seconds.get(method)
        if tally is None:
            tally = self._seconds[method] = Tally(SECONDS)
        tally.add(seconds)

    def refused(self, method: str, code: str) -> None:
        """Count a call that was refused before anything but its headers was read."""
        self._requests[method, code] += 1

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        """Record a scored prompt's tokens, and how many of them the warmest pod holds."""
        self._tokens.add(prompt_tokens)
        if prompt_tokens:
            self._matched.add(matched_tokens / prompt_tokens)

    def kept_out(self, asked: str, why: str) -> None:
        """Count a call or request that was refused to its caller."""
        self._kept_out.labels(asked, why).inc()

    def endpoint_picked(self, outcome: str) -> None:
        """Count a gateway's request for a pick."""
        self._endpoint_picks.labels(outcome).inc()

    def waited(self, priority: str, outcome: str, seconds: float) -> None:
        """Record how long a pick of a class waited in the queue, and what became of it."""
        self._queued.labels(priority, outcome).observe(seconds)

    def lagged(self, seconds: float) -> None:
        """Record by how much the loop woke up late, once."""
        self._lag.observe(seconds)


class PartsCollector(Collector):
    """The metrics that the parts keep themselves, read at each scrape."""

    def __init__(
        self,
        ingest: Ingest,
        texts: Texts,
        picking: Picking,
        attribution: Attribution,
        rooms: Sequence[InFlight],
        *,
        admission: Admission,
        endpoint_picker: EndpointPickerService,
        held: HeldPicks | None = None,
        shared: SharedPods | None = None,
    ) -> None:
        self._shared = shared
        self._endpoint_picker = endpoint_picker
        self._held = held
        self._ingest = ingest
        self._texts = texts
        self._picking = picking
        self._attribution = attribution
        self._admission = admission
        self._rooms = rooms
        """The room for the messages of calls, and the room for those of streams."""

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering does not read every part; the names are unique."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read every part."""
        yield from self._ranks()
        stats = self._ingest.index.stats()
        yield _gauge("warmpath_index_keys", "Distinct blocks in the index.", stats.keys)
        yield _gauge("warmpath_index_entries", "Pairs of block and slot.", stats.entries)
        yield _gauge("warmpath_index_slots", "Slots that hold any block.", stats.slots)
        yield _gauge("warmpath_index_bytes", "Bytes that the index takes.", stats.bytes)
        yield _gauge(
            "warmpath_index_max_bytes", "Most bytes that the index may take.", stats.max_bytes
        )
        yield _counter(
            "warmpath_index_evicted_keys", "Blocks evicted for lack of room.", stats.evicted
        )
        stores = [store.stats for store in self._texts.pool.stores.values()]
        for name, help_text, field, make in (
            ("bytes", "Bytes held by the prefix stores.", "bytes", _gauge),
            ("hit_bytes", "Bytes of looked-up texts found.", "hit_bytes", _counter),
            ("missed_bytes", "Bytes of looked-up texts not found.", "missed_bytes", _counter),
            ("evictions", "Entries evicted for lack of room.", "evictions", _counter),
        ):
            total = sum(getattr(stats, field) for stats in stores)
            yield make(f"warmpath_prefix_store_{name}", help_text, total)
        pool = self._texts.pool.stats
        yield _gauge(
            "warmpath_tokenizer_waiting_prompts",
            "Prompts that wait for a tokenizer.",
            pool.waiting_prompts,
        )
        yield _gauge(
            "warmpath_tokenizer_waiting_bytes", "Bytes of the waiting prompts.", pool.waiting_bytes
        )
        yield _counter(
            "warmpath_tokenizer_encoded_bytes", "Bytes of tokenised texts.", pool.encoded_bytes
        )
        yield _counter("warmpath_tokenizer_timeouts", "Texts not tokenised in time.", pool.timeouts)
        yield _counter("warmpath_tokenizer_refused", "Prompts refused: queue full.", pool.refused)
        yield _counter(
            "warmpath_tokenizer_failed", "Texts that a tokenizer failed on.", pool.failed
        )
        lost = self._texts.pool.workers.lost
        yield _gauge("warmpath_tokenizer_lost_threads", "Tokenizer threads that hang.", lost)
        yield from self._loads()
        renders = self._texts.renderer.stats
        yield _gauge(
            "warmpath_renderer_waiting_chats", "Chats that wait to be rendered.", renders.waiting
        )
        yield _gauge(
            "warmpath_renderer_waiting_bytes", "Bytes of the waiting chats.", renders.waiting_bytes
        )
        yield _counter("warmpath_renderer_chats", "Chats rendered.", renders.rendered)
        yield _counter("warmpath_renderer_refused", "Chats refused: queue full.", renders.refused)
        yield _counter(
            "warmpath_renderer_replaced", "Renderer processes replaced.", renders.replaced
        )
        yield from self._in_flight()
        yield from self._admitted()
        if self._held is not None:
            yield from _queued(self._held)
        yield from self._picks()
        picker = self._endpoint_picker
        yield _gauge(
            "warmpath_endpoint_picker_streams", "Gateways' exchanges in progress.", picker.streams
        )
        yield _gauge(
            "warmpath_endpoint_picker_held_bytes",
            "Bytes of requests' bodies that wait for their end or their pick.",
            picker.held_bytes,
        )
        yield _gauge(
            "warmpath_endpoint_picker_max_held_bytes",
            "Most bytes of bodies that may wait.",
            picker.max_held_bytes,
        )
        if self._shared is not None and self._shared.replica is not None:
            yield from _copies(self._shared.replica)
        if self._shared is not None and self._shared.writing is not None:
            yield from _writers(self._shared.writing.writers)
        if self._ingest.remote is not None:
            yield from _look_ups(self._ingest.remote)

    def _loads(self) -> Iterator[Metric]:
        stats = self._texts.tokenizers.stats
        loaded = len(self._texts.tokenizers.loaded())
        yield _gauge("warmpath_tokenizers_loaded", "Tokenizers in memory.", loaded)
        yield _counter("warmpath_tokenizer_loads", "Attempts to load a tokenizer.", stats.loads)
        yield _counter(
            "warmpath_tokenizer_load_failures",
            "Failed attempts to load a tokenizer.",
            stats.failures,
        )
        yield _counter(
            "warmpath_tokenizer_evictions", "Tokenizers unloaded to make room.", stats.evictions
        )
        asked = CounterMetricFamily(
            "warmpath_tokenizer_engine_requests",
            "Requests for tokens sent to engines.",
            labels=["model"],
        )
        failed = CounterMetricFamily(
            "warmpath_tokenizer_engine_failures",
            "Requests for tokens that an engine did not answer.",
            labels=["model"],
        )
        fallbacks = CounterMetricFamily(
            "warmpath_tokenizer_fallbacks",
            "Prompts tokenised locally because no engine answered.",
            labels=["model"],
        )
        for model, engine in self._texts.sources.engines.items():
            asked.add_metric([model], engine.asked)
            failed.add_metric([model], engine.failures)
        for model, fallback in self._texts.sources.fallbacks.items():
            fallbacks.add_metric([model], fallback.fallbacks)
        yield from (asked, failed, fallbacks)

    def _admitted(self) -> Iterator[Metric]:
        admission = self._admission
        yield _gauge(
            "warmpath_waiting_calls",
            "Calls that wait for the thread that answers.",
            admission.waiting,
        )
        yield _gauge(
            "warmpath_waiting_max_calls", "Most calls that may wait now.", admission.most_waiting
        )
        yield _counter(
            "warmpath_busy_refused", "Calls refused: too many waited.", admission.refused
        )

    def _in_flight(self) -> Iterator[Metric]:
        kept, most, waiting, refused, late = (
            sum(figures)
            for figures in zip(
                *((of.bytes, of.limit, of.waiting, of.refused, of.late) for of in self._rooms),
                strict=True,
            )
        )
        yield _gauge("warmpath_in_flight_bytes", "Bytes reserved for messages.", kept)
        yield _gauge("warmpath_in_flight_max_bytes", "Most bytes that may be reserved.", most)
        yield _gauge("warmpath_in_flight_waiting_calls", "Calls that wait for room.", waiting)
        yield _counter("warmpath_in_flight_refused", "Calls refused: too many waited.", refused)
        yield _counter("warmpath_in_flight_late", "Calls ended: their message was late.", late)

    def _picks(self) -> Iterator[Metric]:
        picking = self._picking
        bookings, believed = picking.bookings, picking.believed.stats()
        yield _gauge("warmpath_bookings", "Picked requests that have not ended.", len(bookings))
        yield _counter(
            "warmpath_bookings_expired", "Bookings whose end was never reported.", bookings.expired
        )
        yield _counter(
            "warmpath_first_tokens_missing",
            "Requests that did not fail and whose first token was never reported.",
            bookings.unreported,
        )
        gone = "Picks whose caller was gone before the answer."
        yield _counter("warmpath_picks_cancelled", gone, picking.withdrawn)
        yield _gauge("warmpath_believed_blocks", "Believed blocks.", believed.blocks)
        yield _gauge("warmpath_believed_max_blocks", "Most believed blocks.", believed.max_blocks)
        yield _gauge("warmpath_sessions", "Sessions remembered.", len(picking.sessions))
        if picking.peers is not None:
            yield from _shared_bookings(picking.peers)
        for name, help_text in (
            ("requests", "Picks of the pod."),
            ("prompt_tokens", "Tokens of their prompts."),
            ("available_tokens", "Prompt tokens held by the candidate that held most."),
            ("captured_tokens", "Prompt tokens held by the pod."),
            ("reported_requests", "Picks whose report has the engine's cached tokens."),
            ("predicted_tokens", "Cached tokens predicted for the reported requests."),
            ("delivered_tokens", "Cached tokens that the engine found for the reported requests."),
            ("output_tokens", "Tokens of the answers, as reported."),
        ):
            metric = CounterMetricFamily(
                f"warmpath_pick_{name}", help_text, labels=["pod", "model"]
            )
            for row in self._attribution.rows():
                metric.add_metric([row.pod, row.model], getattr(row, name))
            yield metric
        yield from self._shadows()

    def _shadows(self) -> Iterator[Metric]:
        for name, help_text in (
            ("requests", "Shadow picks whose pod the caller reported."),
            ("prompt_tokens", "Tokens of their prompts."),
            ("chosen_tokens", "Prompt tokens held by the pods that callers chose."),
            ("warmpath_tokens", "Prompt tokens held by the pods that warmpath would have chosen."),
        ):
            metric = CounterMetricFamily(f"warmpath_shadow_{name}", help_text, labels=["model"])
            for row in self._attribution.shadows():
                metric.add_metric([row.model], getattr(row, name))
            yield metric

    def _ranks(self) -> Iterator[Metric]:
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
        for rank in self._ingest:
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
            taken = rank.copies()
            if taken is not None:
                copies.add_metric(name, taken)
            if rank.capacity:
                capacity.add_metric(name, rank.capacity)
            for kind, count in rank.counts().items():
                events.add_metric([*name, kind], count)
        yield from (trust, blocks, copies, capacity, events, waiting, dropped)
        yield from (lag_seconds, lag_batches)


def _shared_bookings(peers: PeerBookings) -> Iterator[Metric]:
    now, received, relay = time.monotonic(), peers.received, peers.relay
    name = "warmpath_shared_bookings"
    connected = float(peers.is_connected)
    yield _gauge(f"{name}_connected", "1 if Redis answered the last round.", connected)
    yield _gauge(
        f"{name}_routers", "Other routers whose bookings count here.", received.routers(now)
    )
    yield _gauge(
        f"{name}_oldest_seconds", "Age of the oldest of these bookings.", received.oldest(now)
    )
    yield _counter(f"{name}_told", "Times that this router wrote its bookings.", peers.writes)
    yield _counter(f"{name}_failures", "Rounds with an error of Redis.", peers.failures)
    yield _counter(f"{name}_malformed", "Invalid values of other routers.", received.malformed)
    for kind, help_text, count in (
        ("handed_on", "Reports handed on to the router with the booking.", relay.handed_on),
        ("received", "Reports of own bookings received from other routers.", relay.received),
        ("dropped", "Reports whose router disappeared before they were handed on.", relay.dropped),
    ):
        yield _counter(f"{name}_reports_{kind}", help_text, count)


def _copies(replica: Replica) -> Iterator[Metric]:
    name = "warmpath_shared_index"
    polled = replica.polled_at
    if polled is not None:
        age = time.monotonic() - polled
        yield _gauge(f"{name}_poll_age_seconds", "Time since all pods were last polled.", age)
    lost = replica.redis.disruptions
    yield _counter(f"{name}_disruptions", "Times that a Redis node was lost or reached anew.", lost)
    yield _counter(f"{name}_log_entries", "Journal entries applied.", replica.entries())
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


def _writers(writers: Mapping[str, Writer]) -> Iterator[Metric]:
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


def _look_ups(remote: RemoteIndex) -> Iterator[Metric]:
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
        yield _counter(f"{name}_{what}", help_text, count)
    yield _gauge(f"{name}_copy_segments", "Segments in the copy.", len(copy))
    yield _gauge(f"{name}_copy_bytes", "Bytes of the copy.", copy.bytes)
    yield _gauge(f"{name}_copy_max_bytes", "Most bytes of the copy.", copy.max_bytes)
    left_alone = remote.reach.open_buckets
    yield _gauge(f"{name}_open_buckets", "Buckets left alone now.", left_alone)


def _queued(held: HeldPicks) -> Iterator[Metric]:
    queue = held.queue
    waiting = GaugeMetricFamily(
        "warmpath_queue_waiting", "Picks that wait in the queue.", labels=["class"]
    )
    for name, count in held.waiting().items():
        waiting.add_metric([name], count)
    yield waiting
    yield _gauge("warmpath_queue_bytes", "Bytes of the picks that wait.", queue.bytes)
    yield _gauge(
        "warmpath_queue_hold_seconds",
        "Booked prefill up to which a rank has room; infinite: no pick waits.",
        queue.hold_seconds,
    )
    yield _gauge(
        "warmpath_queue_lag_seconds",
        "How much later first tokens are reported than predicted.",
        queue.lag.seconds,
    )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)
