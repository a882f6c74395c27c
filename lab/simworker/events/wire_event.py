"""Cache events that dialects encode: every engine's own events are turned into these.

Hashes are whole digests; the dialect decides which part of a digest is sent, and in which form. The
fields are those of `vllm/distributed/kv_events.py` of 0.32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GPU = "GPU"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks were stored, each the child of the one before it."""

    block_hashes: Sequence[bytes]
    parent_block_hash: bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU
    lora_name: str | None = None
    extra_keys: Sequence[Sequence[Any] | None] | None = None
    """Extra keys of each block: adapter, multimodal items, a first block's salt; None: no keys."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks were removed."""

    block_hashes: Sequence[bytes]
    medium: str | None = GPU
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache was reset."""


WireEvent = Stored | Removed | Cleared
