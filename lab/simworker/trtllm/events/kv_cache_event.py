"""A manager's cache events: created, stored, removed, updated.

Source: TensorRT-LLM's `executor::KVCacheEvent` and its four kinds of data (`executor/executor.h`, 1.2).

Source of the JSON: TensorRT-LLM's `KVCacheEventSerializer` (`tensorrt_llm/_utils.py`, 1.2), with the
same members in the same order; it leaves the adapter out too. The value is null
where level or priority did not change.
"""

from dataclasses import dataclass
from typing import Any

from warmpath.lab.simworker.trtllm.blocks.block_key import MmKey


@dataclass(frozen=True, slots=True)
class KVCacheCreatedData:
    """The start of one window's life."""

    num_blocks_per_cache_level: tuple[int, ...]
    """(blocks of the primary pool, blocks of the secondary pool)."""


@dataclass(frozen=True, slots=True)
class KVCacheStoredBlockData:
    """A block that was stored."""

    block_hash: int
    tokens: tuple[int, ...]
    token_extra_ids: tuple[int, ...] | None
    lora_id: int | None
    cache_level: int
    priority: int
    mm_keys: tuple[MmKey, ...]


@dataclass(frozen=True, slots=True)
class KVCacheStoredData:
    """Blocks that were stored, each the child of the one before it."""

    parent_hash: int | None
    """Hash of the first block's parent; None if that is the root."""
    blocks: tuple[KVCacheStoredBlockData, ...]


@dataclass(frozen=True, slots=True)
class KVCacheRemovedData:
    """Blocks that were removed."""

    block_hashes: list[int]
    """Hashes of the removed blocks; more join while the event is the newest one and not flushed."""


@dataclass(frozen=True, slots=True)
class KVCacheEventDiff:
    """A value before and after a change."""

    old_value: int
    new_value: int


@dataclass(frozen=True, slots=True)
class KVCacheUpdatedData:
    """A block that changed its level or its priority."""

    block_hash: int
    cache_level: KVCacheEventDiff | None = None
    priority: KVCacheEventDiff | None = None


KVCacheEventData = KVCacheCreatedData | KVCacheStoredData | KVCacheRemovedData | KVCacheUpdatedData


@dataclass(frozen=True, slots=True)
class KVCacheEvent:
    """One event. Ids count from 0, over all windows of one engine (or attention DP rank)."""

    event_id: int
    data: KVCacheEventData
    window_size: int
    attention_dp_rank: int | None = None


def serialise(event: KVCacheEvent) -> dict[str, Any]:
    """Return an event's JSON object; block hashes are unsigned and need all of 64 bits."""
    found = {
        "event_id": event.event_id,
        "data": _data(event.data),
        "window_size": event.window_size,
    }
    if event.attention_dp_rank is not None:
        found["attention_dp_rank"] = event.attention_dp_rank
    return found


def _data(data: KVCacheEventData) -> dict[str, Any]:
    if isinstance(data, KVCacheCreatedData):
        levels = list(data.num_blocks_per_cache_level)
        return {"type": "created", "num_blocks_per_cache_level": levels}
    if isinstance(data, KVCacheStoredData):
        return {
            "type": "stored",
            "parent_hash": data.parent_hash,
            "blocks": [_stored_block(block) for block in data.blocks],
        }
    if isinstance(data, KVCacheRemovedData):
        return {"type": "removed", "block_hashes": list(data.block_hashes)}
    return {
        "type": "updated",
        "block_hash": data.block_hash,
        "cache_level": _diff(data.cache_level),
        "priority": _diff(data.priority),
    }


def _stored_block(block: KVCacheStoredBlockData) -> dict[str, Any]:
    extra_ids = block.token_extra_ids or (0,) * len(block.tokens)
    return {
        "type": "stored_block",
        "block_hash": block.block_hash,
        "tokens": [
            {"type": "unique_token", "token_id": token, "token_extra_id": extra_id}
            for token, extra_id in zip(block.tokens, extra_ids, strict=True)
        ],
        "cache_level": block.cache_level,
        "priority": block.priority,
        "mm_keys": [_mm_key(key) for key in block.mm_keys],
    }


def _mm_key(key: MmKey) -> dict[str, Any]:
    digest, start_offset = key
    return {"type": "mm_key", "hash": digest.hex(), "start_offset": start_offset}


def _diff(diff: KVCacheEventDiff | None) -> dict[str, Any] | None:
    if diff is None:
        return None
    return {"type": "event_diff", "new_value": diff.new_value, "old_value": diff.old_value}
