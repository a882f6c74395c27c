"""The choice of the next free block to evict: least recently used, a queue for each level and priority.

Source: TensorRT-LLM's `LRUEvictionPolicy` (`batch_manager/evictionPolicy.cpp`, 1.2). Blocks of a lower
priority are evicted first; among equals, the one that has been free longest. A sequence frees its last
block first, so a chain is evicted from its leaf. Only if a child has a higher priority than its parent
is the parent evicted first; the manager then takes the children out of the tree with it.

A priority may hold for a limited time, which begins when the block is free. At its end the block gets
the default priority, and goes to the end of that queue.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block import ROOT_ID, KVCacheBlock
from warmpath.lab.simworker.trtllm.blocks.pools import PRIMARY_LEVEL, SECONDARY_LEVEL
from warmpath.lab.simworker.trtllm.blocks.retention import DEFAULT_PRIORITY

DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY = 30
"""A block of a lower priority is not moved to the secondary pool."""

LEVELS = (PRIMARY_LEVEL, SECONDARY_LEVEL)

Queue = OrderedDict[int, KVCacheBlock]
"""Free blocks by id; the first is evicted next."""


class NoFreeBlocksError(RuntimeError):
    """A pool has no free block."""


class LRUEvictionPolicy:
    """The free blocks of both pools. `clock` returns seconds, and never goes back."""

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock],
        clock: Callable[[], float],
        secondary_offload_min_priority: int | None = None,
    ) -> None:
        self._clock = clock
        self._offload_min_priority = (
            DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
            if secondary_offload_min_priority is None
            else secondary_offload_min_priority
        )
        self._queues: tuple[dict[int, Queue], dict[int, Queue]] = ({}, {})
        """Each level's queues by priority; no queue is empty."""
        self._places: dict[int, tuple[int, int]] = {}
        """The level and priority of the queue that each free block is in."""
        self._num_free = [0, 0]
        self._expiring: dict[int, KVCacheBlock] = {}
        self._heap: list[tuple[float, int]] = []
        """(expiration time, block id); entries of blocks that were claimed since do not count."""
        for block in blocks:
            self._add(block)

    def get_free_block(self, level: int) -> tuple[KVCacheBlock, bool]:
        """Return the block to evict next, and whether to offload its content; the block stays free.

        Level 0 is the GPU's pool, level 1 the host's (`lab.simworker.trtllm.blocks.pools`). Raises
        NoFreeBlocksError.
        """
        queues = self._queues[level]
        if not queues:
            raise NoFreeBlocksError(f"no free block on level {level}")
        priority = min(queues)
        worth_offloading = level == PRIMARY_LEVEL and priority >= self._offload_min_priority
        return next(iter(queues[priority].values())), worth_offloading

    def get_num_free_blocks(self, level: int) -> int:
        return self._num_free[level]

    def is_free(self, block: KVCacheBlock) -> bool:
        return block.block_id in self._places

    def claim_block(
        self, block: KVCacheBlock, priority: int | None = None, duration_ms: int | None = None
    ) -> None:
        """Take a block out of its queue, if it is in one; set its priority and how long that holds.

        Without `priority` the block keeps its own; without `duration_ms` it holds for ever.
        """
        self._remove(block)
        if priority is not None:
            block.priority = priority
        block.duration_ms = duration_ms

    def release_block(self, block: KVCacheBlock) -> None:
        """Put a block at the end of the queue of its level and priority."""
        if block.block_id == ROOT_ID or self.is_free(block):
            raise BrokenInvariantError(f"block {block.block_id} cannot be released")
        self._add(block)
        if block.duration_ms is not None and block.priority != DEFAULT_PRIORITY:
            block.expiration_time = self._clock() + block.duration_ms / 1000
            self._expiring[block.block_id] = block
            heapq.heappush(self._heap, (block.expiration_time, block.block_id))

    def refresh(self) -> None:
        """End the priorities whose time is over. Once an iteration is enough."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            expired, block_id = heapq.heappop(self._heap)
            block = self._expiring.get(block_id)
            if block is None or block.expiration_time != expired:
                continue
            self._remove(block)
            block.priority = DEFAULT_PRIORITY
            self._add(block)

    def _add(self, block: KVCacheBlock) -> None:
        level = block.slot.level
        queue = self._queues[level].setdefault(block.priority, OrderedDict())
        queue[block.block_id] = block
        self._places[block.block_id] = level, block.priority
        self._num_free[level] += 1

    def _remove(self, block: KVCacheBlock) -> None:
        place = self._places.pop(block.block_id, None)
        if place is None:
            return
        level, priority = place
        queue = self._queues[level][priority]
        del queue[block.block_id]
        if not queue:
            del self._queues[level][priority]
        self._num_free[level] -= 1
        self._expiring.pop(block.block_id, None)

    def check(self) -> None:
        seen = 0
        for level in LEVELS:
            count = 0
            for priority, queue in self._queues[level].items():
                count += len(queue)
                for block_id, block in queue.items():
                    if (block.slot.level, block.priority) != (level, priority):
                        raise BrokenInvariantError(f"block {block_id} waits in a wrong queue")
                    if self._places.get(block_id) != (level, priority):
                        raise BrokenInvariantError(
                            f"block {block_id} is not in the queue of its place"
                        )
                    if block.ref_count:
                        raise BrokenInvariantError(f"block {block_id} is free and in use")
            if count != self._num_free[level]:
                raise BrokenInvariantError(
                    f"{count} free on level {level}, {self._num_free[level]} counted"
                )
            seen += count
        if seen != len(self._places):
            raise BrokenInvariantError(f"{seen} blocks in queues, {len(self._places)} places")
        if not self._expiring.keys() <= self._places.keys():
            raise BrokenInvariantError("a block whose priority is to end is not free")
