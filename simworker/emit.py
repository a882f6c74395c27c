"""Cache events as the bytes that vLLM 0.32 publishes.

Source: `vllm/distributed/kv_events.py` (`shared/engine-events.md`, section 2): a batch is an array
`[timestamp, events, data_parallel_rank]`, an event a map with `type` first and its fields in the order
of declaration, those at their defaults left out.
"""

from collections.abc import Sequence

import msgspec

from simworker.v1.kv_cache_event import CacheEvent

_encode = msgspec.msgpack.Encoder().encode


def encode_batch(timestamp: float, events: Sequence[CacheEvent], rank: int) -> bytes:
    """Return the payload of one batch; `timestamp` is the wall clock's, seconds."""
    return _encode([timestamp, events, rank])
