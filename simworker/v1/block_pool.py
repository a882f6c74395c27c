"""The pool of blocks: which are free, which content each has cached.

Source: `vllm/v1/core/block_pool.py` of 0.32 (`shared/engine-events.md`, 4.1 and 4.2).
"""

from collections.abc import Sequence

from simworker.engine import BrokenInvariantError
from simworker.v1.block import FreeBlockQueue, KVCacheBlock
from simworker.v1.kv_cache_event import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from simworker.v1.request import Request


class BlockPool:
    """`num_blocks` blocks, the first of which is the null block and never used.

    A freed block keeps its content until it is used anew: free is not forgotten.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [KVCacheBlock(number) for number in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free_block_queue = FreeBlockQueue(self.blocks[1:])
        # Equal content may lie in several blocks; a look-up takes the one cached longest.
        self._cached: dict[bytes, dict[int, KVCacheBlock]] = {}
        self._events: list[CacheEvent] = []

    def get_num_free_blocks(self) -> int:
        """Return how many blocks are free, cached content or not."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Return the share of the usable blocks that are in use."""
        usable = len(self.blocks) - 1
        return 1 - self.get_num_free_blocks() / usable if usable else 0.0

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """Return a block that has this content."""
        blocks = self._cached.get(block_hash)
        return next(iter(blocks.values())) if blocks else None

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """Take `count` free blocks, evicting what they had cached. Raises ValueError for too many."""
        if count > self.get_num_free_blocks():
            raise ValueError(f"{count} blocks wanted, {self.get_num_free_blocks()} are free")
        taken = []
        for _ in range(count):
            block = self.free_block_queue.popleft()
            if block.block_hash is not None:
                self._events.append(BlockRemoved(block.block_hash))
                self._uncache(block)
            block.ref_cnt = 1
            taken.append(block)
        return taken

    def _uncache(self, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        blocks = self._cached[block.block_hash]
        del blocks[block.block_id]
        if not blocks:
            del self._cached[block.block_hash]
        block.block_hash = None

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Use cached blocks once more."""
        for block in blocks:
            if not block.ref_cnt:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered: Sequence[KVCacheBlock]) -> None:
        """Use blocks once less; those that nobody uses become free, in this order.

        Blocks without content are used first (0.24 and later).
        """
        empty = []
        for block in ordered:
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if block.block_hash is None:
                empty.append(block)
            else:
                self.free_block_queue.append(block)
        self.free_block_queue.prepend(empty)

    def cache_full_blocks(
        self, request: Request, blocks: Sequence[KVCacheBlock], cached: int, full: int
    ) -> None:
        """Cache the request's blocks `cached` to `full` (exclusive), and announce them."""
        if cached >= full:
            return
        size = self.block_size
        for block, block_hash in zip(
            blocks[cached:full], request.block_hashes[cached:full], strict=True
        ):
            block.block_hash = block_hash
            self._cached.setdefault(block_hash, {})[block.block_id] = block
        self._events.append(
            BlockStored(
                block_hashes=request.block_hashes[cached:full],
                parent_block_hash=request.block_hashes[cached - 1] if cached else None,
                token_ids=request.token_ids[cached * size : full * size],
                block_size=size,
                lora_name=request.lora_name or None,
                extra_keys=[request.extra_keys(number) for number in range(cached, full)],
            )
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False, and nothing done, while blocks are in use."""
        if self.get_num_free_blocks() != len(self.blocks) - 1:
            return False
        self._cached.clear()
        for block in self.blocks:
            block.block_hash = None
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Raise BrokenInvariantError where counts, queue and cache disagree."""
        free = self.free_block_queue.get_all_free_blocks()
        if len(free) != self.get_num_free_blocks() or len(set(map(id, free))) != len(free):
            raise BrokenInvariantError("the free queue's length is wrong")
        used = [block for block in self.blocks[1:] if block.ref_cnt]
        if len(free) + len(used) != len(self.blocks) - 1 or any(block.ref_cnt for block in free):
            raise BrokenInvariantError("free and used are not all")
        cached = {block.block_id for blocks in self._cached.values() for block in blocks.values()}
        if cached != {block.block_id for block in self.blocks if block.block_hash is not None}:
            raise BrokenInvariantError("the cache's blocks are not those with content")
