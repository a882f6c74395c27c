"""Every metric of the router, by room: kind, sentence, labels. docs/reference/metrics.md is made of it.

Labels are bounded: by the configuration (pods, models, classes), by the engines (ranks, tiers), or by
lists in the code (methods, statuses, reasons, kinds).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
STEPS = (0.00001, 0.000025, 0.00005, *SECONDS)
TOKENS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
WAITS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RANK, POD = ("pod", "rank"), ("pod", "model")
"""Labels."""


class Declared(NamedTuple):
    """One metric."""

    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    """Upper bounds of a histogram's buckets."""


def _gauge(text: str, *labels: str) -> Declared:
    return Declared("gauge", text, labels)


def _counter(text: str, *labels: str) -> Declared:
    return Declared("counter", text, labels)


def _histogram(text: str, buckets: Sequence[float], *labels: str) -> Declared:
    return Declared("histogram", text, labels, buckets)


ROOMS: Mapping[str, Mapping[str, Declared]] = {
    "The process": {
        "build_info": _gauge("1, with the version as label.", "version"),
        "ready": _gauge("1 if the router is ready, as in /readyz."),
        "ready_condition": _gauge(
            "1 if the condition holds; server.ready says which are required.",
            "condition",
            "required",
        ),
        "certificate_expiry_timestamp_seconds": _gauge(
            "Unix time at which certificates in use expire: `cert` (the first of its chain) "
            "or `ca` (the last authority) of the table server.tls, watch or probe.",
            "table",
            "file",
        ),
        "pod_source_up": _gauge(
            "1 if the source of pods ([[pod-sets]], pods-file) answered last time and was "
            "not silent for too long.",
            "source",
        ),
        "pod_source_silence_seconds": _gauge(
            "Seconds since the source last answered. A Kubernetes watch without changes is "
            "silent for up to two minutes.",
            "source",
        ),
        "loop_lag_seconds": _histogram("How late the event loop that answers calls woke up.", LAGS),
    },
    "Calls": {
        "requests": _counter("Answered calls.", "method", "code"),
        "refusals": _counter("Refused calls, by reason.", "method", "reason"),
        "request_seconds": _histogram(
            "Time from a call's arrival to its answer.", SECONDS, "method"
        ),
        "step_seconds": _histogram(
            "Time of a call's steps: body, read, tokenise, look-up, match, group, queue, "
            "choose, reply.",
            STEPS,
            "step",
        ),
        "kept_out": _counter(
            "Calls refused because the caller is unknown or lacks the role.", "asked", "why"
        ),
        "refused_connections": _counter(
            "Connections closed at once, at server.http2.max-connections or half of the file "
            "descriptors. Not with grpcio."
        ),
        "prompt_tokens": _histogram("Tokens of a scored prompt.", TOKENS),
        "matched_ratio": _histogram("Share of a scored prompt that the warmest pod holds.", SHARES),
        "waiting_calls": _gauge("Calls that wait for the thread that answers."),
        "waiting_max_calls": _gauge("Limit of waiting calls now."),
        "busy_refused": _counter("Calls refused: too many waited."),
        "in_flight_bytes": _gauge("Bytes reserved for messages."),
        "in_flight_max_bytes": _gauge("Limit of these bytes."),
        "in_flight_waiting_calls": _gauge("Calls that wait for room for their message."),
        "in_flight_refused": _counter("Calls refused: too many waited for room."),
        "in_flight_late": _counter("Calls ended: their message was late."),
    },
    "Pods and ranks": {
        "pod_ready": _gauge("1 if the pod is healthy and accepts requests.", *POD),
        "rank_running": _gauge("Unfinished requests on the rank, waiting ones included.", *RANK),
        "rank_waiting": _gauge("Requests on the rank without a first token.", *RANK),
        "rank_wait_seconds": _gauge("Booked prefill that the rank has not computed yet.", *RANK),
        "rank_stuck_seconds": _gauge(
            "Seconds without an answer of a stuck rank, which picks avoid; else 0.", *RANK
        ),
        "rank_trust": _gauge("1 for the current level. Only for pods with events.", *RANK, "level"),
        "rank_blocks": _gauge("Distinct blocks held.", *RANK, "tier"),
        "rank_copies": _gauge("Used blocks of the fastest tier.", *RANK),
        "rank_capacity": _gauge("All blocks of the fastest tier, if known.", *RANK),
        "rank_lag_seconds": _gauge(
            "Age of the last batch when it was applied, by the engine's clock.", *RANK
        ),
        "rank_lag_batches": _gauge("Batches received and not yet applied.", *RANK),
        "events": _counter("Events, and problems of the event stream, by kind.", *RANK, "kind"),
        "rank_orphan_bytes": _gauge("Bytes of stored blocks whose parent is unknown.", *RANK),
        "rank_orphans_dropped": _counter("Such blocks dropped for lack of room.", *RANK),
    },
    "The index": {
        "index_keys": _gauge("Distinct blocks in the index."),
        "index_entries": _gauge("Pairs of block and slot."),
        "index_slots": _gauge("Slots that hold a block."),
        "index_bytes": _gauge("Bytes of the index."),
        "index_max_bytes": _gauge("Limit of these bytes."),
        "index_evicted_keys": _counter("Blocks evicted for lack of room."),
    },
    "Texts and chats": {
        "prefix_store_bytes": _gauge("Bytes of the prefix stores."),
        "prefix_store_hit_bytes": _counter("Bytes of looked-up texts found."),
        "prefix_store_missed_bytes": _counter("Bytes of looked-up texts not found."),
        "prefix_store_evictions": _counter("Entries evicted for lack of room."),
        "tokenizer_waiting_prompts": _gauge("Prompts that wait for a tokenizer."),
        "tokenizer_waiting_bytes": _gauge("Bytes of these prompts."),
        "tokenizer_encoded_bytes": _counter("Bytes of tokenised texts."),
        "tokenizer_timeouts": _counter("Texts not tokenised in time."),
        "tokenizer_refused": _counter("Prompts refused: queue full."),
        "tokenizer_failed": _counter("Texts that a tokenizer failed on."),
        "tokenizer_lost_threads": _gauge("Tokenizer threads that hang."),
        "tokenizers_loaded": _gauge("Tokenizers in memory."),
        "tokenizer_loads": _counter("Attempts to load a tokenizer."),
        "tokenizer_load_failures": _counter("Failed attempts."),
        "tokenizer_evictions": _counter("Tokenizers unloaded to make room."),
        "tokenizer_engine_requests": _counter("Texts sent to engines to be tokenised.", "model"),
        "tokenizer_engine_failures": _counter("Texts that an engine did not tokenise.", "model"),
        "tokenizer_fallbacks": _counter(
            "Texts tokenised locally because no engine answered.", "model"
        ),
        "renderer_waiting_chats": _gauge("Chats that wait to be rendered."),
        "renderer_waiting_bytes": _gauge("Bytes of these chats."),
        "renderer_chats": _counter("Chats rendered."),
        "renderer_refused": _counter("Chats refused: queue full."),
        "renderer_replaced": _counter("Renderer processes replaced."),
    },
    "Picks": {
        "bookings": _gauge("Picked requests that have not ended."),
        "bookings_expired": _counter("Bookings whose end was never reported."),
        "first_tokens_missing": _counter(
            "Requests that did not fail and whose first token was never reported."
        ),
        "picks_cancelled": _counter("Picks whose caller left before it read the answer."),
        "decisions_lost": _counter(
            "Lines of pick.decision-log not written: too many, or an unusable file."
        ),
        "believed_blocks": _gauge("Believed blocks."),
        "believed_max_blocks": _gauge("Limit of believed blocks."),
        "pick_requests": _counter("Picks of the pod.", *POD),
        "pick_prompt_tokens": _counter("Tokens of their prompts.", *POD),
        "pick_available_tokens": _counter("Prompt tokens held by the warmest candidate.", *POD),
        "pick_captured_tokens": _counter("Prompt tokens held by the picked pod.", *POD),
        "pick_average_tokens": _counter("Prompt tokens held by candidates on average.", *POD),
        "pick_reported_requests": _counter("Picks with the engine's cached tokens reported.", *POD),
        "pick_predicted_tokens": _counter("Cached tokens predicted for these.", *POD),
        "pick_delivered_tokens": _counter("Cached tokens reported for these.", *POD),
        "pick_output_tokens": _counter("Tokens of the answers, as reported.", *POD),
        "shadow_requests": _counter("Shadow picks whose pod the caller reported.", "model"),
        "shadow_prompt_tokens": _counter("Tokens of their prompts.", "model"),
        "shadow_chosen_tokens": _counter("Prompt tokens held by the caller's pod.", "model"),
        "shadow_warmpath_tokens": _counter("Prompt tokens held by warmpath's pod.", "model"),
    },
    "The queue": {
        "queue_waiting": _gauge("Picks in the queue.", "class"),
        "queue_bytes": _gauge("Bytes of these picks."),
        "queue_hold_seconds": _gauge(
            "Booked prefill up to which a rank has room; infinite: no pick waits."
        ),
        "queue_steps_back": _gauge("1 for the reason why no pick waits, else 0.", "reason"),
        "queue_lag_seconds": _gauge("How much later first tokens come than predicted."),
        "queue_wait_seconds": _histogram(
            "Time that picks waited, by class and outcome.", WAITS, "class", "outcome"
        ),
    },
    "The endpoint picker": {
        "endpoint_picks": _counter("Gateways' requests for a pick, by outcome.", "outcome"),
        "endpoint_picker_streams": _gauge("Open exchanges with gateways."),
        "endpoint_picker_held_bytes": _gauge(
            "Bytes of request bodies that wait for their end or their pick."
        ),
        "endpoint_picker_max_held_bytes": _gauge("Limit of these bytes."),
    },
    "Bookings of other routers": {
        "shared_bookings_connected": _gauge("1 if Redis answered the last round."),
        "shared_bookings_routers": _gauge("Other routers that are alive."),
        "shared_bookings_oldest_seconds": _gauge("Age of the oldest of their bookings."),
        "shared_bookings_told": _counter("Times that this router wrote its bookings."),
        "shared_bookings_failures": _counter("Rounds in which Redis failed."),
        "shared_bookings_malformed": _counter("Invalid values of other routers."),
        "shared_bookings_reports_handed_on": _counter(
            "Reports sent to the router with the booking."
        ),
        "shared_bookings_reports_received": _counter("Reports received from other routers."),
        "shared_bookings_reports_dropped": _counter(
            "Reports that waited too long, or that their router did not read in time."
        ),
        "shared_bookings_reports_waiting": _gauge("Reports that wait to be sent."),
    },
    "The shared index: both modes": {
        "shared_index_poll_age_seconds": _gauge(
            "Seconds since Redis last answered for all pods, or since the start."
        ),
    },
    "The shared index: replica mode": {
        "shared_index_disruptions": _counter(
            "Times that a Redis node was lost, reconnected or unreadable."
        ),
        "shared_index_log_entries": _counter("Journal entries applied."),
        "shared_index_resyncs": _counter("Times that a pod's blocks were read again.", "reason"),
        "shared_index_lag_deltas": _gauge("Changes in a pod's record that its copy lacks.", "pod"),
    },
    "The shared index: shared mode": {
        "shared_index_look_ups": _counter("Prompts for which Redis was asked."),
        "shared_index_reads": _counter("Reads from Redis."),
        "shared_index_read_seconds": _counter("Total time of these reads."),
        "shared_index_read_bytes": _counter("Bytes that they returned."),
        "shared_index_timeouts": _counter("Reads that timed out."),
        "shared_index_errors": _counter("Reads that failed otherwise, in part or in full."),
        "shared_index_late": _counter("Prompts answered before their reads ended."),
        "shared_index_old_answers": _counter("Answers from an incomplete or outdated copy."),
        "shared_index_unknown_slots": _counter(
            "Runs of blocks whose slot belongs to no known rank."
        ),
        "shared_index_copy_hits": _counter("Segments found in the router's copy."),
        "shared_index_copy_misses": _counter("Segments not found there."),
        "shared_index_copy_evictions": _counter("Segments evicted from the copy."),
        "shared_index_openings": _counter("Times that a bucket was skipped after failures."),
        "shared_index_losses": _counter("Times that buckets were found lost or replaced."),
        "shared_index_copy_segments": _gauge("Segments in the copy."),
        "shared_index_copy_bytes": _gauge("Bytes of the copy."),
        "shared_index_copy_max_bytes": _gauge("Limit of these bytes."),
        "shared_index_open_buckets": _gauge("Buckets skipped now."),
    },
}
"""The metrics by room; names without `warmpath_`."""

DECLARED = {name: one for metrics in ROOMS.values() for name, one in metrics.items()}


_FAMILIES: Mapping[str, type[GaugeMetricFamily | CounterMetricFamily]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}

Sample = tuple[Sequence[str], float]
"""A metric's labels and its value."""


def metric(name: str, samples: Iterable[Sample] = ()) -> GaugeMetricFamily | CounterMetricFamily:
    """Return a declared gauge or counter with its samples. Raises KeyError."""
    one = DECLARED[name]
    made = _FAMILIES[one.kind](f"warmpath_{name}", one.text, labels=one.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def single(name: str, value: float) -> Metric:
    """Return a declared gauge or counter without labels, with its value. Raises KeyError."""
    return metric(name, [((), value)])
