"""vLLM's dialect, 0.9 to 0.32.

Source: `vllm/distributed/kv_events.py` of those versions. A
batch is an array `[timestamp, events, data_parallel_rank]`. Events are arrays up to 0.23 and maps from
0.24. Hashes are the last 8 bytes of a digest as an unsigned integer or, from 0.10.2, the whole digest if
`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES` is 0. Up to 0.10.1 the default hashes were Python's own, signed;
here they are unsigned as with that version's `sha256_cbor_64bit`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from warmpath.lab.simworker.events.wire_event import (
    Field,
    Layout,
    Removed,
    Stored,
    Version,
    WireEvent,
    version_text,
)

OLDEST: Version = (0, 9)
NEWEST: Version = (0, 32, 0)
BYTE_HASHES_SINCE: Version = (0, 10, 2)
MAPS_SINCE: Version = (0, 24)
REPLAY_TOPIC_SINCE: Version = (0, 26)
RANK_SINCE: Version = (0, 9, 1)

STORED = (
    Field("block_hashes", always=True),
    Field("parent_block_hash", always=True),
    Field("token_ids", always=True),
    Field("block_size", always=True),
    Field("lora_id", always=True),
    Field("medium", (0, 10, 2), always=True),
    Field("lora_name", (0, 14), always=True),
    Field("extra_keys", (0, 17)),
    Field("group_idx", (0, 20)),
    Field("kv_cache_spec_kind", (0, 22)),
    Field("kv_cache_spec_sliding_window", (0, 22)),
    Field("locality", (0, 26)),
    Field("ownership", (0, 29)),
    Field("session_id", (0, 30)),
)
REMOVED = (
    Field("block_hashes", always=True),
    Field("medium", (0, 10, 2), always=True),
    Field("group_idx", (0, 20)),
    Field("locality", (0, 26)),
    Field("ownership", (0, 29)),
)

_encode = msgspec.msgpack.Encoder().encode


class VllmDialect:
    """The encoder of one vLLM version's batches."""

    engine = "vllm"
    keeps_once = False
    """Whether the engine keeps each block once in a medium, and so announces no second copy."""
    opening: Sequence[WireEvent] = ()
    """Events at a life's begin. Readers notice a new life of vLLM only by its sequence numbers."""

    def __init__(self, version: Version | None = None, byte_hashes: bool = False) -> None:
        """Take a version, the newest by default. Raises ValueError for one out of range."""
        version = version or NEWEST
        if not OLDEST <= version[:2] <= NEWEST[:2]:
            raise ValueError(
                f"vLLM's events are known from {version_text(OLDEST)} to {version_text(NEWEST)}"
            )
        if byte_hashes and version < BYTE_HASHES_SINCE:
            raise ValueError(
                f"vLLM {version_text(version)} has no hashes as bytes; 0.10.2 and later have"
            )
        self.version = version_text(version)
        self.replays_topic = version >= REPLAY_TOPIC_SINCE
        """Whether a replayed batch has the topic among its frames."""
        self._says_rank = version >= RANK_SINCE
        self._bytes = byte_hashes
        self._layout = Layout(version, maps=version >= MAPS_SINCE)
        self._stored = self._layout.fields(STORED)
        self._removed = self._layout.fields(REMOVED)

    def batch(self, timestamp: float, events: Sequence[WireEvent], rank: int | None) -> bytes:
        """Return one batch's payload; `timestamp` is the wall clock's, seconds."""
        batch: list[Any] = [timestamp, [self._event(event) for event in events]]
        if self._says_rank:
            batch.append(rank)
        return _encode(batch)

    def _event(self, event: WireEvent) -> Any:
        if isinstance(event, Stored):
            parent = event.parent_block_hash
            values = {field.name: getattr(event, field.name) for field in self._stored}
            values["block_hashes"] = [self._hash(digest) for digest in event.block_hashes]
            values["parent_block_hash"] = None if parent is None else self._hash(parent)
            return self._layout.event("BlockStored", self._stored, values)
        if isinstance(event, Removed):
            values = {field.name: getattr(event, field.name) for field in self._removed}
            values["block_hashes"] = [self._hash(digest) for digest in event.block_hashes]
            return self._layout.event("BlockRemoved", self._removed, values)
        return self._layout.event("AllBlocksCleared", (), {})

    def _hash(self, digest: bytes) -> int | bytes:
        return digest if self._bytes else int.from_bytes(digest[-8:], "big")
