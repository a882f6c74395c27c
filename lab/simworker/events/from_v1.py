"""vLLM v1's cache events, turned into those that dialects encode.

The engine is set up to put whole digests into its events; the dialect decides which part is sent.

vLLM's block pool may compute a block again for another request, and announces each copy. SGLang's tree
has one page for one content: it announces the first copy, and the removal of the last.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

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


class KeptOnce:
    """Counts the copies of each block in one rank's cache, by digest, medium and group."""

    def __init__(self) -> None:
        self._copies: Counter[tuple[bytes, str | None, int]] = Counter()

    def announced(self, events: Sequence[WireEvent]) -> list[WireEvent]:
        """Return first stores, last removals and clears; stores keep their blocks' order and parents."""
        return [kept for event in events for kept in self._announced(event)]

    def _announced(self, event: WireEvent) -> Iterator[WireEvent]:
        if isinstance(event, Cleared):
            self._copies.clear()
            yield event
        elif isinstance(event, Removed):
            gone = [digest for digest in event.block_hashes if self._remove(digest, event)]
            if gone:
                yield replace(event, block_hashes=gone)
        else:
            fresh = [self._add(digest, event) for digest in event.block_hashes]
            for is_fresh, run in groupby(range(len(fresh)), fresh.__getitem__):
                if is_fresh:
                    positions = list(run)
                    yield _part(event, positions[0], positions[-1] + 1)

    def _add(self, digest: bytes, event: Stored) -> bool:
        name = (digest, event.medium, event.group_idx or 0)
        self._copies[name] += 1
        return self._copies[name] == 1

    def _remove(self, digest: bytes, event: Removed) -> bool:
        name = (digest, event.medium, event.group_idx or 0)
        self._copies[name] -= 1
        if self._copies[name] > 0:
            return False
        return self._copies.pop(name) == 0


def _part(event: Stored, start: int, stop: int) -> Stored:
    """Return the event of the blocks from `start` to before `stop`."""
    size = event.block_size
    return replace(
        event,
        block_hashes=event.block_hashes[start:stop],
        parent_block_hash=event.block_hashes[start - 1] if start else event.parent_block_hash,
        token_ids=event.token_ids[start * size : stop * size],
        extra_keys=event.extra_keys[start:stop] if event.extra_keys else event.extra_keys,
    )
