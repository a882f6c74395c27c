"""The CPU side of KV offloading: chunks of host memory, and their content.

A *chunk* is the unit of offloading: the content of one or more consecutive blocks of a sequence in one
group. Its key is the hash of its last block, which covers all tokens before it too, and the number of
the group.

At any time a chunk is in one of these states:

    being written   a store has begun and not ended; it can neither be read nor evicted
    idle            it can be read, and it can be evicted
    being read      `ref_cnt` loads are under way; it cannot be evicted

The least recently used chunk is evicted first. A chunk is used when it is inserted. When a request has
finished, all chunks that it stored, found stored or loaded are used once more, its last chunk first, so
that the tail of a request's chunks is evicted before the head. The end of a transfer does not count as a
use.

Source: `vllm/v1/kv_offload/cpu/manager.py` and `policies/lru.py` of 0.32. Left out: the ARC policy, and
storing a chunk only when it has been offered several times (`store_threshold`).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from warmpath.lab.simworker.engine import BrokenInvariantError


class OffloadKey(NamedTuple):
    """The name of a chunk's content."""

    block_hash: bytes
    """The engine's digest of the chunk's last block."""
    group_idx: int


class LookupResult(Enum):
    """The result of a look-up."""

    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    """The chunk is being written: ask again later."""


@dataclass(slots=True)
class ReqContext:
    """The pool's record of one request."""

    req_id: str
    positions: dict[OffloadKey, int] = field(default_factory=dict)
    """Key -> tokens up to the chunk's end. The maker of the keys fills it in."""
    accessed: dict[OffloadKey, None] = field(default_factory=dict)
    """Chunks that the request stored, found stored, or loaded."""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class OffloadingEvent:
    """Chunks became readable, or were evicted."""

    keys: list[OffloadKey]
    removed: bool


@dataclass(frozen=True, slots=True)
class PrepareStoreOutput:
    """The chunks that a store copies, and those evicted for it."""

    keys_to_store: list[OffloadKey]
    chunk_ids: list[int]
    """The place of each key's chunk in host memory."""
    evicted_keys: list[OffloadKey]


@dataclass(slots=True)
class _Chunk:
    chunk_id: int
    ref_cnt: int = -1
    """Loads that read it; -1 while it is being written."""


class CPUOffloadingManager:
    """A pool of `num_chunks` chunks. Raises ValueError for a negative number."""

    def __init__(self, num_chunks: int) -> None:
        if num_chunks < 0:
            raise ValueError(f"num_chunks: {num_chunks}, at least 0")
        self.num_chunks = num_chunks
        self._chunks: OrderedDict[OffloadKey, _Chunk] = OrderedDict()
        """Key -> its chunk, the least recently used first."""
        self._num_allocated = 0
        """Ids below this number have been handed out at least once."""
        self._free: list[int] = []
        """Ids that were given back; the last one is used next."""
        self._generation = 0
        self._events: list[OffloadingEvent] = []

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Return whether a chunk is there; a look-up does not count as a use."""
        chunk = self._chunks.get(key)
        if chunk is None:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if chunk.ref_cnt < 0 else LookupResult.HIT

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> list[int]:
        """Begin to read chunks; return their ids.

        Raises ValueError if a chunk is missing or being written: callers look up first.
        """
        for key in keys:
            if self.lookup(key) is not LookupResult.HIT:
                raise ValueError(f"chunk {key} cannot be read: {self.lookup(key).name}")
        for key in keys:
            self._chunks[key].ref_cnt += 1
        self._access(keys, req_context)
        return [self._chunks[key].chunk_id for key in keys]

    def complete_load(self, keys: Collection[OffloadKey]) -> None:
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is None or chunk.ref_cnt < 1:
                raise ValueError(f"chunk {key} is not being read")
            chunk.ref_cnt -= 1

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Begin to write the chunks that are not there; evict others, none of `keys`, for them.

        Returns None, and changes nothing, if too few others can be evicted.
        """
        missing = [key for key in keys if key not in self._chunks]
        there = {key for key in keys if self.lookup(key) is LookupResult.HIT}
        self._access((key for key in keys if key not in self._chunks or key in there), req_context)
        free = len(self._free) + self.num_chunks - self._num_allocated
        evicted = self._evictable(len(missing) - free, set(keys))
        if evicted is None:
            return None
        for key in evicted:
            self._free.append(self._chunks.pop(key).chunk_id)
        if evicted:
            self._events.append(OffloadingEvent(evicted, removed=True))
        for key in missing:
            self._chunks[key] = _Chunk(self._allocate())
        ids = [self._chunks[key].chunk_id for key in missing]
        return PrepareStoreOutput(missing, ids, evicted)

    def complete_store(self, keys: Iterable[OffloadKey]) -> None:
        """End a store: its chunks can be read."""
        stored = []
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is not None and chunk.ref_cnt < 0:
                chunk.ref_cnt = 0
                stored.append(key)
        if stored:
            self._events.append(OffloadingEvent(stored, removed=False))

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Count the chunks that a request accessed as used, its last chunks first."""
        if req_context.generation == self._generation:
            by_group = sorted(req_context.accessed, key=lambda key: key.group_idx)
            by_group.sort(key=lambda key: req_context.positions.get(key, 0))
            for key in reversed(by_group):
                if key in self._chunks:
                    self._chunks.move_to_end(key)
        req_context.accessed.clear()

    def reset_cache(self) -> None:
        """Forget all chunks, even those being copied; do not end the jobs of these afterwards."""
        self._chunks.clear()
        self._free.clear()
        self._num_allocated = 0
        self._generation += 1

    def take_events(self) -> list[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    def chunk_ids(self) -> Mapping[OffloadKey, int]:
        """Return the place of each chunk, the least recently used first."""
        return {key: chunk.chunk_id for key, chunk in self._chunks.items()}

    def _access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        if req_context.generation != self._generation:
            req_context.accessed.clear()
            req_context.generation = self._generation
        req_context.accessed.update(dict.fromkeys(keys))

    def _allocate(self) -> int:
        if self._num_allocated < self.num_chunks:
            self._num_allocated += 1
            return self._num_allocated - 1
        return self._free.pop()

    def _evictable(self, count: int, protected: Collection[OffloadKey]) -> list[OffloadKey] | None:
        """Return the next `count` chunks to evict; None if there are fewer."""
        found: list[OffloadKey] = []
        if count <= 0:
            return found
        for key, chunk in self._chunks.items():
            if not chunk.ref_cnt and key not in protected:
                found.append(key)
                if len(found) == count:
                    return found
        return None

    def check(self) -> None:
        """Raise BrokenInvariantError unless each id handed out is free or that of one chunk."""
        held = sorted([chunk.chunk_id for chunk in self._chunks.values()] + self._free)
        if held != list(range(self._num_allocated)) or self._num_allocated > self.num_chunks:
            raise BrokenInvariantError(
                f"chunks {held} are held or free, {self._num_allocated} of {self.num_chunks} handed out"
            )
        if any(chunk.ref_cnt < -1 for chunk in self._chunks.values()):
            raise BrokenInvariantError("a chunk was released more often than taken")
