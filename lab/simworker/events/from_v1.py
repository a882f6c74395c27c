"""vLLM v1's cache events, turned into those that dialects encode.

The engine is set up to put whole digests into its events; the dialect decides which part is sent.
"""

from collections.abc import Callable, Sequence

from warmpath.lab.simworker.events.wire_event import Cleared, Removed, Stored, WireEvent
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockRemoved, BlockStored, CacheEvent
from warmpath.lab.simworker.v1.hashing.block_hash import ExternalBlockHash

LoraId = Callable[[str], int | None]
"""Returns the number that this engine gives an adapter; other engines may number it otherwise."""


def from_v1(events: Sequence[CacheEvent], lora_id: LoraId) -> list[WireEvent]:
    """Return a step's events, in order. Raises TypeError for hashes that are not digests."""
    return [_event(event, lora_id) for event in events]


def _event(event: CacheEvent, lora_id: LoraId) -> WireEvent:
    if isinstance(event, BlockStored):
        parent = event.parent_block_hash
        return Stored(
            block_hashes=[_digest(one) for one in event.block_hashes],
            parent_block_hash=None if parent is None else _digest(parent),
            token_ids=event.token_ids,
            block_size=event.block_size,
            lora_id=lora_id(event.lora_name) if event.lora_name else None,
            medium=event.medium,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys,
            group_idx=event.group_idx,
            kv_cache_spec_kind=event.kv_cache_spec_kind,
            kv_cache_spec_sliding_window=event.kv_cache_spec_sliding_window,
            locality=event.locality,
            ownership=event.ownership,
            session_id=event.session_id,
        )
    if isinstance(event, BlockRemoved):
        return Removed(
            [_digest(one) for one in event.block_hashes],
            event.medium,
            event.group_idx,
            event.locality,
            event.ownership,
        )
    return Cleared()


def _digest(block_hash: ExternalBlockHash) -> bytes:
    if isinstance(block_hash, int):
        raise TypeError("an event has an integer for a hash; use_int_block_hashes must be off")
    return block_hash
