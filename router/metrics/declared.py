"""Every metric of the router, by room: kind, sentence, labels. docs/reference/metrics.md is made of it.

Labels are bounded: by the configuration (pods, models, classes), by the engines (ranks, tiers), or by
the code (methods, statuses, reasons, kinds; the number of clients).
"""

from collections.abc import Iterable, Mapping

from warmpath.process.metric import Declared, Family, Sample, counter, gauge, histogram

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
STEPS = (0.00001, 0.000025, 0.00005, *SECONDS)
TOKENS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
WAITS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RANK, POD, KIND = ("pod", "rank"), ("pod", "model"), ("model", "role")
CLIENT = ("model", "client", "tenant")
"""Labels."""


ROOMS: Mapping[str, Mapping[str, Declared]] = {
    "The process": {
        "build_info": gauge("1, with the version as label.", "version"),
        "ready": gauge("1 if the router is ready, as in /readyz."),
        "ready_condition": gauge(
            "1 if the condition holds; server.ready says which are required.",
            "condition",
            "required",
        ),
        "certificate_expiry_timestamp_seconds": gauge(
            "Unix time at which certificates in use expire: `cert` (the first of its chain) "
            "or `ca` (the last authority) of the table server.tls, watch or probe.",
            "table",
            "file",
        ),
        "pod_source_up": gauge(
            "1 if the source of pods ([[pod-sets]], pods-file) answered last time and was "
            "not silent for too long.",
            "source",
        ),
        "pod_source_silence_seconds": gauge(
            "Seconds since the source last answered. A Kubernetes watch without changes is "
            "silent for up to two minutes.",
            "source",
        ),
        "loop_lag_seconds": histogram("How late the event loop that answers calls woke up.", LAGS),
    },
    "Calls": {
        "requests": counter("Answered calls; each report of a Report counts.", "method", "code"),
        "refusals": counter("Refused calls, by reason.", "method", "reason"),
        "request_seconds": histogram(
            "Time from a call's arrival to its answer.", SECONDS, "method"
        ),
        "step_seconds": histogram(
            "Time of a call's steps: body, read, tokenise, look-up, match, queue, choose, reply.",
            STEPS,
            "step",
        ),
        "kept_out": counter(
            "Calls refused because the caller is unknown or lacks the role.", "asked", "why"
        ),
        "refused_connections": counter(
            "Connections closed at once, at server.http2.max-connections or half of the file "
            "descriptors. Not with grpcio."
        ),
        "prompt_tokens": histogram("Tokens of a scored prompt.", TOKENS),
        "matched_ratio": histogram("Share of a scored prompt that the warmest pod holds.", SHARES),
        "waiting_calls": gauge("Calls that wait for the thread that answers."),
        "waiting_max_calls": gauge("Limit of waiting calls now."),
        "busy_refused": counter("Calls refused: too many waited."),
        "in_flight_bytes": gauge("Bytes reserved for messages."),
        "in_flight_max_bytes": gauge("Limit of these bytes."),
        "in_flight_waiting_calls": gauge("Calls that wait for room for their message."),
        "in_flight_refused": counter("Calls refused: too many waited for room."),
        "in_flight_late": counter("Calls ended: their message was late."),
    },
    "Pods and ranks": {
        "pod_ready": gauge("1 if the pod is healthy and accepts requests.", *POD),
        "rank_running": gauge("Unfinished requests on the rank, waiting ones included.", *RANK),
        "rank_waiting": gauge("Requests on the rank without a first token.", *RANK),
        "rank_engine_running": gauge(
            "Requests that the engine computes, by its own metrics while they are fresh.", *RANK
        ),
        "rank_engine_waiting": gauge("Requests in the engine's queue, likewise.", *RANK),
        "rank_engine_kv_usage": gauge(
            "Share of the KV cache that requests hold, 0 to 1, likewise.", *RANK
        ),
        "rank_wait_seconds": gauge("Booked prefill that the rank has not computed yet.", *RANK),
        "rank_stuck_seconds": gauge(
            "Seconds without an answer of a stuck rank, which picks avoid; else 0.", *RANK
        ),
        "rank_trust": gauge("1 for the current level. Only for pods with events.", *RANK, "level"),
        "rank_blocks": gauge("Distinct blocks held.", *RANK, "tier"),
        "rank_copies": gauge("Used blocks of the fastest tier.", *RANK),
        "rank_capacity": gauge("All blocks of the fastest tier, if known.", *RANK),
        "rank_lag_seconds": gauge(
            "Age of the last batch when it was applied, by the engine's clock.", *RANK
        ),
        "rank_lag_batches": gauge("Batches received and not yet applied.", *RANK),
        "events": counter("Events, and problems of the event stream, by kind.", *RANK, "kind"),
        "rank_orphan_bytes": gauge("Bytes of stored blocks whose parent is unknown.", *RANK),
        "rank_orphans_dropped": counter("Such blocks dropped for lack of room.", *RANK),
    },
    "Demand for engines": {
        "engine_saturation": gauge(
            "The larger of the shares of ranks' time that prefill takes, and of KV memory that requests "
            "hold; 1 while requests wait for a first pod.",
            *KIND,
        ),
        "engine_wait_seconds": gauge("Prefill that no rank of the model has computed yet.", *KIND),
        "engine_pods_needed": gauge(
            "Pods that the model's present work needs (docs/guides/scale-engines.md).", *KIND
        ),
        "engine_awaited_requests": gauge("Requests that wait for a first pod.", "model"),
    },
    "The index": {
        "index_keys": gauge("Distinct blocks in the index."),
        "index_entries": gauge("Pairs of block and slot."),
        "index_slots": gauge("Slots that hold a block."),
        "index_bytes": gauge("Bytes of the index."),
        "index_max_bytes": gauge("Limit of these bytes."),
        "index_evicted_keys": counter("Blocks evicted for lack of room."),
    },
    "Texts and chats": {
        "prefix_store_bytes": gauge("Bytes of the prefix stores."),
        "prefix_store_hit_bytes": counter("Bytes of looked-up texts found."),
        "prefix_store_missed_bytes": counter("Bytes of looked-up texts not found."),
        "prefix_store_evictions": counter("Entries evicted for lack of room."),
        "tokenizer_waiting_prompts": gauge("Prompts that wait for a tokenizer."),
        "tokenizer_waiting_bytes": gauge("Bytes of these prompts."),
        "tokenizer_encoded_bytes": counter("Bytes of tokenised texts."),
        "tokenizer_timeouts": counter("Texts not tokenised in time."),
        "tokenizer_refused": counter("Prompts refused: queue full."),
        "tokenizer_failed": counter("Texts that a tokenizer failed on."),
        "tokenizer_compared": counter("Live texts encoded a second time, by `tokenizers`."),
        "tokenizer_disagreements": gauge("Models for which `fastokens` gave other ids."),
        "tokenizer_lost_threads": gauge("Tokenizer threads that hang."),
        "tokenizers_loaded": gauge("Tokenizers in memory."),
        "tokenizer_loads": counter("Attempts to load a tokenizer."),
        "tokenizer_load_failures": counter("Failed attempts."),
        "tokenizer_evictions": counter("Tokenizers unloaded to make room."),
        "tokenizer_engine_requests": counter("Texts sent to engines to be tokenised.", "model"),
        "tokenizer_engine_failures": counter("Texts that an engine did not tokenise.", "model"),
        "tokenizer_fallbacks": counter(
            "Texts tokenised locally because no engine answered.", "model"
        ),
        "renderer_waiting_chats": gauge("Chats that wait to be rendered."),
        "renderer_waiting_bytes": gauge("Bytes of these chats."),
        "renderer_chats": counter("Chats rendered."),
        "renderer_refused": counter("Chats refused: queue full."),
        "renderer_replaced": counter("Renderer processes replaced."),
    },
    "Picks": {
        "bookings": gauge("Picked requests that have not ended."),
        "bookings_expired": counter("Bookings whose end was never reported."),
        "first_tokens_missing": counter(
            "Requests that did not fail and whose first token was never reported."
        ),
        "picks_cancelled": counter("Picks whose caller left before it read the answer."),
        "decisions_lost": counter(
            "Lines of pick.decision-log not written: too many, or an unusable file."
        ),
        "blind_requests": counter(
            "Picks that knew nothing of caches, by what was missing: tokenizer, template, time, body "
            "(an API whose prompt only the engine knows), blocks.",
            "reason",
        ),
        "believed_blocks": gauge("Believed blocks."),
        "believed_max_blocks": gauge("Limit of believed blocks."),
        "pick_requests": counter("Picks of the pod.", *POD),
        "pick_prompt_tokens": counter("Tokens of their prompts.", *POD),
        "pick_available_tokens": counter("Prompt tokens held by the warmest candidate.", *POD),
        "pick_captured_tokens": counter("Prompt tokens held by the picked pod.", *POD),
        "pick_average_tokens": counter("Prompt tokens held by candidates on average.", *POD),
        "pick_reported_requests": counter("Picks with the engine's cached tokens reported.", *POD),
        "pick_predicted_tokens": counter("Cached tokens predicted for these.", *POD),
        "pick_delivered_tokens": counter("Cached tokens reported for these.", *POD),
        "pick_output_tokens": counter("Tokens of the answers, as reported.", *POD),
        "client_prompt_tokens": counter(
            "Tokens of prompts. The client is the first word of its User-Agent; beyond 64: other.",
            *CLIENT,
        ),
        "client_captured_tokens": counter("Prompt tokens held by the picked pod.", *CLIENT),
        "client_average_tokens": counter("Prompt tokens held by candidates on average.", *CLIENT),
        "client_saved_seconds": counter("Predicted prefill that the held tokens saved.", *CLIENT),
        "client_predicted_tokens": counter(
            "Cached tokens predicted, where the engine reported its own.", *CLIENT
        ),
        "client_delivered_tokens": counter("Cached tokens reported for these.", *CLIENT),
        "client_compared_tokens": counter(
            "Tokens of prompts that were compared with the earlier one of their session: a client's "
            "first 64 picks, then 16 of each 512.",
            *CLIENT,
        ),
        "client_spoiled_tokens": counter(
            "Of these, tokens that were there before, but now stand behind a change.", *CLIENT
        ),
        "shadow_requests": counter("Shadow picks whose pod the caller reported.", "model"),
        "shadow_prompt_tokens": counter("Tokens of their prompts.", "model"),
        "shadow_chosen_tokens": counter("Prompt tokens held by the caller's pod.", "model"),
        "shadow_warmpath_tokens": counter("Prompt tokens held by warmpath's pod.", "model"),
        "shadow_better_requests": counter("Of these, warmpath's pod held more.", "model"),
        "shadow_saved_seconds": gauge(
            "Predicted seconds by which first tokens would come earlier, of the last 4,096.",
            "model",
            "quantile",
        ),
        "shadow_log_lines": counter("Lines of the followed log, by outcome.", "outcome"),
    },
    "The queue": {
        "queue_waiting": gauge("Picks in the queue.", "class"),
        "queue_bytes": gauge("Bytes of these picks."),
        "queue_hold_seconds": gauge(
            "Booked prefill up to which a rank has room; infinite: no pick waits."
        ),
        "queue_steps_back": gauge("1 for the reason why no pick waits, else 0.", "reason"),
        "queue_lag_seconds": gauge("How much later first tokens come than predicted."),
        "queue_wait_seconds": histogram(
            "Time that picks waited, by class and outcome.", WAITS, "class", "outcome"
        ),
    },
    "The endpoint picker": {
        "endpoint_picks": counter("Gateways' requests for a pick, by outcome.", "outcome"),
        "access_log_entries": counter(
            "Entries of gateways' access logs, by outcome: reported, unknown (no router that is reached "
            "has the booking), unpicked, malformed.",
            "outcome",
        ),
        "reports_passed_on": counter(
            "Reports passed on to the router that made the pick, where routers share no bookings, by "
            "outcome: taken, lost.",
            "outcome",
        ),
        "endpoint_picker_streams": gauge("Open exchanges with gateways."),
        "endpoint_picker_held_bytes": gauge(
            "Bytes of request bodies that wait for their end or their pick."
        ),
        "endpoint_picker_max_held_bytes": gauge("Limit of these bytes."),
    },
    "Bookings of other routers": {
        "shared_bookings_connected": gauge("1 if Redis answered the last round."),
        "shared_bookings_routers": gauge("Other routers that are alive."),
        "shared_bookings_oldest_seconds": gauge("Age of the oldest of their bookings."),
        "shared_bookings_told": counter("Times that this router wrote its bookings."),
        "shared_bookings_failures": counter("Rounds in which Redis failed."),
        "shared_bookings_malformed": counter("Invalid values of other routers."),
        "shared_bookings_reports_handed_on": counter(
            "Reports sent to the router with the booking."
        ),
        "shared_bookings_reports_received": counter("Reports received from other routers."),
        "shared_bookings_reports_dropped": counter(
            "Reports that waited too long, or that their router did not read in time."
        ),
        "shared_bookings_reports_waiting": gauge("Reports that wait to be sent."),
    },
    "The shared index: both modes": {
        "shared_index_poll_age_seconds": gauge(
            "Seconds since Redis last answered for all pods, or since the start."
        )
    },
    "The shared index: replica mode": {
        "shared_index_disruptions": counter(
            "Times that a Redis node was lost, reconnected or unreadable."
        ),
        "shared_index_log_entries": counter("Journal entries applied."),
        "shared_index_resyncs": counter("Times that a pod's blocks were read again.", "reason"),
        "shared_index_lag_deltas": gauge("Changes in a pod's record that its copy lacks.", "pod"),
    },
    "The shared index: shared mode": {
        "shared_index_look_ups": counter("Prompts for which Redis was asked."),
        "shared_index_reads": counter("Reads from Redis."),
        "shared_index_read_seconds": counter("Total time of these reads."),
        "shared_index_read_bytes": counter("Bytes that they returned."),
        "shared_index_timeouts": counter("Reads that timed out."),
        "shared_index_errors": counter("Reads that failed otherwise, in part or in full."),
        "shared_index_late": counter("Prompts answered before their reads ended."),
        "shared_index_old_answers": counter("Answers from an incomplete or outdated copy."),
        "shared_index_unknown_slots": counter(
            "Runs of blocks whose slot belongs to no known rank."
        ),
        "shared_index_copy_hits": counter("Segments found in the router's copy."),
        "shared_index_copy_misses": counter("Segments not found there."),
        "shared_index_copy_evictions": counter("Segments evicted from the copy."),
        "shared_index_openings": counter("Times that a bucket was skipped after failures."),
        "shared_index_losses": counter("Times that buckets were found lost or replaced."),
        "shared_index_copy_segments": gauge("Segments in the copy."),
        "shared_index_copy_bytes": gauge("Bytes of the copy."),
        "shared_index_copy_max_bytes": gauge("Limit of these bytes."),
        "shared_index_open_buckets": gauge("Buckets skipped now."),
    },
}
"""The metrics by room; names without `warmpath_`."""

DECLARED = {name: one for metrics in ROOMS.values() for name, one in metrics.items()}


def metric(name: str, samples: Iterable[Sample] = ()) -> Family:
    """Return a declared gauge or counter with its samples. Raises KeyError."""
    return DECLARED[name].family(f"warmpath_{name}", samples)


def single(name: str, value: float) -> Family:
    """Return a declared gauge or counter without labels, with its value. Raises KeyError."""
    return metric(name, [((), value)])
