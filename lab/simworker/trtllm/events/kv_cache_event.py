"""A manager's cache events: created, stored, removed, updated.

Source: TensorRT-LLM's `executor::KVCacheEvent` and its four kinds of data (`executor/executor.h`, 1.2).
"""

from dataclasses import dataclass

from warmpath.lab.simworker.trtllm.blocks.block_key import MmKey


@dataclass(frozen=True, slots=True)
class KVCacheCreatedData:
    """The start of one window's life."""

    num_blocks_per_cache_level: tuple[int, ...]
    """Blocks of the primary and of the secondary pool."""


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
    """Grows while the event is the newest one and not flushed."""


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
