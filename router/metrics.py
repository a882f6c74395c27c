"""Every metric of the router: name, unit, labels and what bounds them.

One file declares them all, however long it becomes, so that names and labels are compared at a glance.
Labels are pods, ranks, tiers, methods and statuses: as many as are configured or defined. No prompt,
hash or request id is ever a label. What the parts count in plain fields is read when it is scraped.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from indexer.follow.rank_ingest import RankIngest
from indexer.ingest import Ingest
from indexer.shared.query.index import RemoteIndex
from indexer.shared.replica.pod_copy import Resync
from indexer.shared.replica.run import Replica
from indexer.shared.writer.machine import Writer
from indexer.shared.writer.steps import Cause, State
from indexer.trust import Level
from router.api.in_flight import InFlight
from router.diagnosis.attribution import Attribution
from router.peers.exchange import PeerBookings
from router.pick.picking import Picking
from router.pods.shared_index import SharedPods
from router.prompt.assemble import Texts

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
TOKENS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Metrics:
    """The metrics that are counted as things happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answered: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "warmpath_requests",
            "Answered calls.",
            ["method", "code"],  # the contract's methods, gRPC's statuses
            registry=registry,
        )
        self._seconds = Histogram(
            "warmpath_request_seconds",
            "Time from a call's arrival to its answer.",
            ["method"],
            buckets=SECONDS,
            registry=registry,
        )
        self._tokens = Histogram(
            "warmpath_prompt_tokens",
            "Tokens of a scored prompt.",
            buckets=TOKENS,
            registry=registry,
        )
        self._matched = Histogram(
            "warmpath_matched_ratio",
            "Share of a scored prompt that the warmest pod holds.",
            buckets=SHARES,
            registry=registry,
        )
        self._lag = Histogram(
            "warmpath_loop_lag_seconds",
            "Lateness of the loop that answers: how long something held it.",
            buckets=LAGS,
            registry=registry,
        )

    def answered(self, method: str, code: str, seconds: float) -> None:
        """Take note of one answer."""
        meters = self._answered.get((method, code))
        if meters is None:
            meters = self._requests.labels(method, code), self._seconds.labels(method)
            self._answered[method, code] = meters
        requests, durations = meters
        requests.inc()
        durations.observe(seconds)

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        """Take note of one scored prompt and the most that any pod holds of it."""
        self._tokens.observe(prompt_tokens)
        if prompt_tokens:
            self._matched.observe(matched_tokens / prompt_tokens)

    def lagged(self, seconds: float) -> None:
        """Take note of how late the loop was, once."""
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
        shared: SharedPods | None = None,
    ) -> None:
        self._shared = shared
        self._ingest = ingest
        self._texts = texts
        self._picking = picking
        self._attribution = attribution
        self._rooms = rooms
        """Of calls' and of streams' messages."""

    def describe(self) -> Iterable[Metric]:
        """Declare nothing ahead: the names are unique by construction."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read every part."""
        yield from self._ranks()
        stats = self._ingest.index.stats()
        yield _gauge("warmpath_index_keys", "Distinct blocks in the index.", stats.keys)
        yield _gauge("warmpath_index_entries", "Pairs of block and slot.", stats.entries)
        yield _gauge("warmpath_index_slots", "Slots that hold any block.", stats.slots)
        yield _gauge("warmpath_index_bytes", "Bytes that the index takes.", stats.bytes)
        yield _gauge("warmpath_index_max_bytes", "The most that it may take.", stats.max_bytes)
        yield _counter("warmpath_index_evicted_keys", "Given up for want of room.", stats.evicted)
        stores = [store.stats for store in self._texts.pool.stores.values()]
        for name, help_text, field, make in (
            ("bytes", "Bytes held by the prefix stores.", "bytes", _gauge),
            ("hit_bytes", "Bytes of text found.", "hit_bytes", _counter),
            ("missed_bytes", "Bytes of text not found.", "missed_bytes", _counter),
            ("evictions", "Entries let go.", "evictions", _counter),
        ):
            total = sum(getattr(stats, field) for stats in stores)
            yield make(f"warmpath_prefix_store_{name}", help_text, total)
        pool = self._texts.pool.stats
        yield _gauge("warmpath_tokenizer_waiting_prompts", "Prompts waiting.", pool.waiting_prompts)
        yield _gauge("warmpath_tokenizer_waiting_bytes", "Their bytes.", pool.waiting_bytes)
        yield _counter("warmpath_tokenizer_encoded_bytes", "Bytes of text.", pool.encoded_bytes)
        yield _counter("warmpath_tokenizer_timeouts", "Waits cut short.", pool.timeouts)
        yield _counter("warmpath_tokenizer_refused", "Prompts refused: queue full.", pool.refused)
        yield _counter("warmpath_tokenizer_failed", "Texts a tokenizer failed on.", pool.failed)
        lost = self._texts.pool.workers.lost
        yield _gauge("warmpath_tokenizer_lost_threads", "Threads that hang.", lost)
        yield from self._loads()
        renders = self._texts.renderer.stats
        yield _gauge("warmpath_renderer_waiting_chats", "Chats waiting.", renders.waiting)
        yield _gauge("warmpath_renderer_waiting_bytes", "Their bytes.", renders.waiting_bytes)
        yield _counter("warmpath_renderer_chats", "Chats rendered.", renders.rendered)
        yield _counter("warmpath_renderer_refused", "Chats refused: queue full.", renders.refused)
        yield _counter("warmpath_renderer_replaced", "Processes replaced.", renders.replaced)
        yield from self._in_flight()
        yield from self._picks()
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
        yield _counter("warmpath_tokenizer_loads", "Attempts to load one.", stats.loads)
        yield _counter("warmpath_tokenizer_load_failures", "Failed attempts.", stats.failures)
        yield _counter("warmpath_tokenizer_evictions", "Let go for others.", stats.evictions)
        asked = CounterMetricFamily(
            "warmpath_tokenizer_engine_requests", "Engines asked for tokens.", labels=["model"]
        )
        failed = CounterMetricFamily(
            "warmpath_tokenizer_engine_failures", "Not answered by one.", labels=["model"]
        )
        fallbacks = CounterMetricFamily(
            "warmpath_tokenizer_fallbacks", "Answered locally instead.", labels=["model"]
        )
        for model, engine in self._texts.sources.engines.items():
            asked.add_metric([model], engine.asked)
            failed.add_metric([model], engine.failures)
        for model, fallback in self._texts.sources.fallbacks.items():
            fallbacks.add_metric([model], fallback.fallbacks)
        yield from (asked, failed, fallbacks)

    def _in_flight(self) -> Iterator[Metric]:
        kept, most, waiting, refused, late = (
            sum(figures)
            for figures in zip(
                *((of.bytes, of.limit, of.waiting, of.refused, of.late) for of in self._rooms),
                strict=True,
            )
        )
        yield _gauge("warmpath_in_flight_bytes", "Bytes kept for calls' messages.", kept)
        yield _gauge("warmpath_in_flight_max_bytes", "The most that may be.", most)
        yield _gauge("warmpath_in_flight_waiting_calls", "Calls not read yet.", waiting)
        yield _counter("warmpath_in_flight_refused", "Calls refused unread.", refused)
        yield _counter("warmpath_in_flight_late", "Calls whose message was late.", late)

    def _picks(self) -> Iterator[Metric]:
        picking = self._picking
        bookings, believed = picking.bookings, picking.believed.stats()
        yield _gauge("warmpath_bookings", "Requests picked and not finished.", len(bookings))
        yield _counter("warmpath_bookings_expired", "Never reported.", bookings.expired)
        yield _counter(
            "warmpath_first_tokens_missing",
            "Never reported, of requests that did not fail.",
            bookings.unreported,
        )
        gone = "Callers gone before the answer."
        yield _counter("warmpath_picks_cancelled", gone, picking.withdrawn)
        yield _gauge("warmpath_believed_blocks", "Blocks only believed.", believed.blocks)
        yield _gauge("warmpath_believed_max_blocks", "The most there may be.", believed.max_blocks)
        yield _gauge("warmpath_sessions", "Sessions remembered.", len(picking.sessions))
        if picking.peers is not None:
            yield from _shared_bookings(picking.peers)
        for name, help_text in (
            ("requests", "Picks of the pod."),
            ("prompt_tokens", "Tokens of their prompts."),
            ("available_tokens", "Of these, held by whichever pod held most."),
            ("captured_tokens", "Of these, held by the pod."),
            ("reported_requests", "Picks whose report says what the engine found cached."),
            ("predicted_tokens", "Cached tokens that were predicted for them."),
            ("delivered_tokens", "Cached tokens that the engine found for them."),
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
            ("requests", "Picks in shadow whose pod was told."),
            ("prompt_tokens", "Tokens of their prompts."),
            ("chosen_tokens", "Of these, held where the caller sent them."),
            ("warmpath_tokens", "Of these, held where warmpath would have."),
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
            "Blocks of the fastest tier, where it is known.",
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
    now, told, relay = time.monotonic(), peers.told, peers.relay
    name = "warmpath_shared_bookings"
    connected = float(peers.is_connected)
    yield _gauge(f"{name}_connected", "1 where Redis answered the last round.", connected)
    yield _gauge(f"{name}_routers", "Other routers whose bookings count here.", told.routers(now))
    yield _gauge(f"{name}_oldest_seconds", "Age of what was told longest ago.", told.oldest(now))
    yield _counter(f"{name}_told", "Times that it was told what is booked here.", peers.tells)
    yield _counter(f"{name}_failures", "Rounds that Redis did not answer in full.", peers.failures)
    yield _counter(f"{name}_malformed", "Values of others that cannot be.", told.malformed)
    for kind, help_text, count in (
        ("handed_on", "Reports given to the router that booked.", relay.handed_on),
        ("received", "Reports that others were given and handed on.", relay.received),
        ("dropped", "Reports whose router went before it had them.", relay.dropped),
    ):
        yield _counter(f"{name}_reports_{kind}", help_text, count)


def _copies(replica: Replica) -> Iterator[Metric]:
    name = "warmpath_shared_index"
    polled = replica.polled_at
    if polled is not None:
        age = time.monotonic() - polled
        yield _gauge(f"{name}_poll_age_seconds", "Since every pod was last asked for.", age)
    lost = replica.redis.disruptions
    yield _counter(f"{name}_disruptions", "Times that a node was lost or reached.", lost)
    yield _counter(f"{name}_log_entries", "Batches of publishers applied.", replica.entries())
    resyncs = CounterMetricFamily(
        f"{name}_resyncs", "Times that a pod's blocks were read anew.", labels=["reason"]
    )
    counts = replica.resyncs()
    for why in Resync:
        resyncs.add_metric([why], counts[why])
    lags = GaugeMetricFamily(
        f"{name}_lag_deltas", "Deltas that a pod's record has and the copy not.", labels=["pod"]
    )
    for pod, lag in replica.lags().items():
        lags.add_metric([pod], lag)
    yield from (resyncs, lags)


def _writers(writers: Mapping[str, Writer]) -> Iterator[Metric]:
    name = "warmpath_shared_index_writer"
    state = GaugeMetricFamily(f"{name}_state", "1 for the state in force.", labels=["pod", "state"])
    trouble = GaugeMetricFamily(f"{name}_trouble", "1 while Redis does not answer.", labels=["pod"])
    rebuilds = CounterMetricFamily(
        f"{name}_rebuilds", "Times that everything was written anew.", labels=["pod", "cause"]
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
        for one in State:
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
        ("reads", "Times that it was asked.", remote.reads),
        ("read_seconds", "Time that these took.", remote.read_seconds),
        ("read_bytes", "Bytes that they brought.", remote.read_bytes),
        ("timeouts", "Reads that were not over in time.", remote.timeouts),
        ("errors", "Reads of which some part failed.", remote.errors),
        ("late", "Prompts that did not wait for the end of a read.", remote.late),
        ("old_answers", "Answers made of what was read before.", remote.old_answers),
        ("unknown_slots", "Stretches whose holder nobody knows.", remote.unknown_slots),
        ("copy_hits", "Segments found in the copy.", copy.hits),
        ("copy_misses", "Segments not found there.", copy.misses),
        ("copy_evictions", "Segments let go for others.", copy.evicted),
        ("openings", "Times that a bucket was left alone.", remote.reach.openings),
        ("losses", "Times that a bucket was another than before.", remote.births.losses),
    ):
        yield _counter(f"{name}_{what}", help_text, count)
    yield _gauge(f"{name}_copy_segments", "Segments in the copy.", len(copy))
    yield _gauge(f"{name}_copy_bytes", "Bytes that it takes.", copy.bytes)
    yield _gauge(f"{name}_copy_max_bytes", "The most that it may take.", copy.max_bytes)
    left_alone = remote.reach.open_buckets
    yield _gauge(f"{name}_open_buckets", "Buckets left alone for now.", left_alone)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)
