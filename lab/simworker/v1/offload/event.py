"""Changes of host memory as events of the medium CPU.

By default the event of a stored chunk has only the hash of its last block: no tokens, no parent, block
size 0. A reader knows the tokens if the GPU's events had the same hash. With self-describing events,
chunks of full-attention groups have all of their blocks' hashes, tokens, parent and block size, but no
extra keys; chunks of groups with a window have only the default.

Each stored chunk makes an event; chunks evicted together make one event for each group, with the hashes
under which they were announced.

Source: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/events.py` of 0.32.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    MEDIUM_CPU,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.hashing.block_hash import (
    BlockHash,
    ExternalBlockHash,
    maybe_convert_block_hash,
)
from warmpath.lab.simworker.v1.offload.group import OffloadGroup
from warmpath.lab.simworker.v1.offload.pool import OffloadingEvent, OffloadKey, ReqContext
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheGroupSpec, get_kv_cache_spec_kind


@dataclass(slots=True)
class _Described:
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    lora_id: int | None
    lora_name: str | None
    resident: bool = True
    """Whether the chunk is stored: not from an announced eviction until the next store."""


class OffloadEvents:
    """Remembers the content of self-describing events from the request until the eviction."""

    def __init__(
        self,
        kv_cache_groups: Sequence[KVCacheGroupSpec],
        hash_block_size: int,
        self_describing: bool,
        convert: Callable[[BlockHash], ExternalBlockHash] = maybe_convert_block_hash,
    ) -> None:
        self._specs = [group.kv_cache_spec for group in kv_cache_groups]
        self._hash_block_size = hash_block_size
        self._self_describing = self_describing
        self._convert = convert
        self._described: dict[OffloadKey, _Described] = {}

    def on_store(self, request: Request, group: OffloadGroup, chunk: int, key: OffloadKey) -> None:
        """Describe a chunk that is about to be stored."""
        if self._self_describing and group.window is None:
            self._described[key] = self._describe(request, group, chunk)

    def on_hit(
        self, request: Request, group: OffloadGroup, key: OffloadKey, context: ReqContext
    ) -> None:
        """Describe a chunk that was found, unless it is described already."""
        if self._self_describing and group.window is None and key not in self._described:
            chunk = context.positions[key] // group.chunk_size - 1
            self._described[key] = self._describe(request, group, chunk)

    def reset(self) -> None:
        self._described.clear()

    def translate(self, events: Iterable[OffloadingEvent]) -> list[CacheEvent]:
        """Return the pool's events in the form for publishing."""
        published: list[CacheEvent] = []
        evicted: list[OffloadKey] = []
        for event in events:
            if event.removed:
                evicted += event.keys
                published += self._removed(event.keys)
            else:
                published += [self._stored(key) for key in event.keys]
        for key in evicted:
            described = self._described.get(key)
            if described is not None and not described.resident:
                del self._described[key]
        return published

    def _describe(self, request: Request, group: OffloadGroup, chunk: int) -> _Described:
        first = chunk * group.hashes_per_chunk
        every = group.block_size // self._hash_block_size
        hashes = request.block_hashes[first : first + group.hashes_per_chunk]
        start = chunk * group.chunk_size
        lora = request.lora_request
        return _Described(
            block_hashes=list(hashes[every - 1 :: every]),
            parent_block_hash=request.block_hashes[first - 1] if first else None,
            token_ids=list(request.all_token_ids[start : start + group.chunk_size]),
            lora_id=lora.adapter_id if lora else None,
            lora_name=lora.name if lora else None,
        )

    def _stored(self, key: OffloadKey) -> BlockStored:
        described = self._described.get(key)
        if described is None:
            return BlockStored(
                block_hashes=[self._convert(key.block_hash)],
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=MEDIUM_CPU,
                lora_name=None,
                group_idx=key.group_idx,
            )
        described.resident = True
        spec = self._specs[key.group_idx]
        parent = described.parent_block_hash
        return BlockStored(
            block_hashes=[self._convert(digest) for digest in described.block_hashes],
            parent_block_hash=None if parent is None else self._convert(parent),
            token_ids=described.token_ids,
            block_size=spec.block_size,
            lora_id=described.lora_id,
            medium=MEDIUM_CPU,
            lora_name=described.lora_name,
            group_idx=key.group_idx,
            kv_cache_spec_kind=get_kv_cache_spec_kind(spec).value,
        )

    def _removed(self, keys: Iterable[OffloadKey]) -> list[CacheEvent]:
        by_group: dict[int, list[ExternalBlockHash]] = {}
        for key in keys:
            hashes = [key.block_hash]
            described = self._described.get(key)
            if described is not None:
                hashes = described.block_hashes
                described.resident = False
            by_group.setdefault(key.group_idx, []).extend(map(self._convert, hashes))
        return [
            BlockRemoved(block_hashes=hashes, medium=MEDIUM_CPU, group_idx=group)
            for group, hashes in by_group.items()
        ]
