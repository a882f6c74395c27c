"""Numbers a manager's events, and keeps them until a reader fetches them.

Source: TensorRT-LLM's `KVCacheEventManager` (`batch_manager/kvCacheEventManager.cpp`, 1.2), without its
threads. `flush` ends an iteration and makes all its events fetchable at once. The buffer holds at
most `max_size` events and drops the oldest. Events are numbered, so a reader notices the gap.
"""

from collections import deque
from collections.abc import Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock
from warmpath.lab.simworker.trtllm.events.kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventData,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)


class KVCacheEventManager:
    """The events of all windows of one manager; the newest `max_size` wait for a reader."""

    def __init__(self, max_size: int, attention_dp_rank: int | None = None) -> None:
        if max_size < 1:
            raise ValueError(f"event_buffer_max_size is {max_size}; at least 1 is needed")
        self._rank = attention_dp_rank
        self._next_id = 0
        self._queue: list[KVCacheEvent] = []
        self._events: deque[KVCacheEvent] = deque(maxlen=max_size)

    def enqueue_created_event(self, num_blocks_per_cache_level: Sequence[int], window: int) -> None:
        """Announce a window's start."""
        self._enqueue(KVCacheCreatedData(tuple(num_blocks_per_cache_level)), window)

    def enqueue_stored_event(self, blocks: Sequence[KVCacheBlock], window: int) -> None:
        """Announce blocks that were put into the tree, each below the one before, if there are any."""
        if not blocks:
            return
        parent = blocks[0].prev_block
        if parent is None:
            raise BrokenInvariantError(f"block {blocks[0].block_id} was stored without a parent")
        stored = tuple(
            KVCacheStoredBlockData(
                block.hash,
                block.key.tokens,
                block.key.extra_ids,
                block.key.lora_task_id,
                block.slot.level,
                block.priority,
                block.key.extra_keys,
            )
            for block in blocks
        )
        self._enqueue(
            KVCacheStoredData(parent.hash if parent.block_id >= 0 else None, stored), window
        )

    def enqueue_removed_event(self, block: KVCacheBlock, window: int) -> None:
        """Announce a block that leaves the tree, in one event with those just before it."""
        last = self._queue[-1] if self._queue else None
        if last and last.window_size == window and isinstance(last.data, KVCacheRemovedData):
            last.data.block_hashes.append(block.hash)
        else:
            self._enqueue(KVCacheRemovedData([block.hash]), window)

    def enqueue_level_event(self, block: KVCacheBlock, old: int, new: int, window: int) -> None:
        """Announce a block that moved from one pool to the other."""
        level = KVCacheEventDiff(old, new)
        self._enqueue(KVCacheUpdatedData(block.hash, cache_level=level), window)

    def enqueue_priority_event(self, block: KVCacheBlock, new: int, window: int) -> None:
        """Announce the new priority of a cached block."""
        priority = KVCacheEventDiff(block.priority, new)
        self._enqueue(KVCacheUpdatedData(block.hash, priority=priority), window)

    def flush(self) -> list[KVCacheEvent]:
        """End an iteration: make its events fetchable; return them."""
        flushed, self._queue = self._queue, []
        self._events.extend(flushed)
        return flushed

    def get_events(self) -> list[KVCacheEvent]:
        """Return the events flushed since the last call, oldest first, and forget them."""
        events = list(self._events)
        self._events.clear()
        return events

    def _enqueue(self, data: KVCacheEventData, window: int) -> None:
        self._queue.append(KVCacheEvent(self._next_id, data, window, self._rank))
        self._next_id += 1

    def check(self) -> None:
        """Raise BrokenInvariantError unless the ids waiting here are consecutive and the newest."""
        waiting = [event.event_id for event in (*self._events, *self._queue)]
        if waiting != list(range(self._next_id - len(waiting), self._next_id)):
            raise BrokenInvariantError(f"event ids {waiting} do not end at {self._next_id - 1}")
