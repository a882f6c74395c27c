"""vLLM v1's cache events as the ones that dialects encode."""

from collections.abc import Callable, Sequence

from simworker.events.wire_event import GPU, Cleared, Removed, Stored, WireEvent
from simworker.v1.kv_cache_event import BlockRemoved, BlockStored, CacheEvent

FULL_ATTENTION = "full_attention"

LoraId = Callable[[str], int | None]
"""The number that this engine gives an adapter; other engines may number it otherwise."""


def from_v1(events: Sequence[CacheEvent], lora_id: LoraId) -> list[WireEvent]:
    """Return a step's events, in order: one group with full attention, on the GPU."""
    return [_event(event, lora_id) for event in events]


def _event(event: CacheEvent, lora_id: LoraId) -> WireEvent:
    if isinstance(event, BlockStored):
        return Stored(
            block_hashes=event.block_hashes,
            parent_block_hash=event.parent_block_hash,
            token_ids=event.token_ids,
            block_size=event.block_size,
            lora_id=lora_id(event.lora_name) if event.lora_name else None,
            medium=GPU,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys,
            group_idx=0,
            kv_cache_spec_kind=FULL_ATTENTION,
        )
    if isinstance(event, BlockRemoved):
        return Removed((event.block_hash,), GPU, 0)
    return Cleared()
