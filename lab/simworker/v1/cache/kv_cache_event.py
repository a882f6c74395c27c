"""Cache events with vLLM's names and fields.

Encoded with msgpack, they are the maps of vLLM 0.24 and later: fields with their defaults are left out.

Source: `vllm/distributed/kv_events.py` of 0.32.
"""

from typing import Any

import msgspec

from warmpath.lab.simworker.v1.hashing.block_hash import ExternalBlockHash

MEDIUM_GPU = "GPU"
MEDIUM_CPU = "CPU"


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """One event; its class's name goes out as `type`."""


class BlockStored(KVCacheEvent):
    """Blocks were stored, each the child of the one before it."""

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    """Hash of the block before the first; None at the beginning of a request."""
    token_ids: list[int]
    """Tokens of all blocks from the first to the last, including blocks that are not announced."""
    block_size: int
    lora_id: int | None
    """The engine's number of the adapter; None without one."""
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    """An entry for each hash, without tags (`to_event_extra_keys`); None where a block has no keys."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    """Blocks were removed. The pool makes an event for each hash."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    """The whole cache was reset."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
