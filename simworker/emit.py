"""Cache events as the bytes that vLLM 0.32 publishes.

Source: `vllm/distributed/kv_events.py` (`shared/engine-events.md`, section 2): a batch is an array
`[timestamp, events, data_parallel_rank]`, an event a map with `type` first and its fields in the order
of declaration; hashes are unsigned 64-bit integers.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from simworker.v1.block_hash import wire_hash
from simworker.v1.kv_cache_event import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

_encode = msgspec.msgpack.Encoder().encode


def encode_batch(timestamp: float, events: Sequence[CacheEvent], rank: int) -> bytes:
    """Return the payload of one batch; `timestamp` is the wall clock's, seconds."""
    return _encode([timestamp, [_event(event) for event in events], rank])


def _event(event: CacheEvent) -> dict[str, Any]:
    if isinstance(event, BlockStored):
        parent = event.parent_block_hash
        return {
            "type": "BlockStored",
            "block_hashes": [wire_hash(digest) for digest in event.block_hashes],
            "parent_block_hash": None if parent is None else wire_hash(parent),
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": 1 if event.lora_name else None,
            "medium": "GPU",
            "lora_name": event.lora_name,
            "extra_keys": event.extra_keys,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [wire_hash(event.block_hash)],
            "medium": "GPU",
            "group_idx": 0,
        }
    assert isinstance(event, AllBlocksCleared)
    return {"type": "AllBlocksCleared"}
