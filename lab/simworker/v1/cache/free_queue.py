"""The queue of free blocks, in the order of their next use.

It is a doubly linked list through the blocks themselves: a block that a request finds cached leaves from
the middle in O(1), and no further object is made for it. The list lies between two guards, which never
leave, so every block in the queue has a neighbour on both sides; a block outside has none.

Source: `FreeKVCacheBlockQueue` in `vllm/v1/core/kv_cache_utils.py` of 0.32.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock


class FreeKVCacheBlockQueue:
    """Free blocks. An appended block is used last, so cached content is evicted in LRU order."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self.fake_free_list_head = KVCacheBlock(-1)
        self.fake_free_list_tail = KVCacheBlock(-1)
        self.fake_free_list_head.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = self.fake_free_list_head
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """Take the next block. Raises ValueError if none is free."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the next `n` blocks. Raises ValueError if fewer are free."""
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks needed, {self.num_free_blocks} are free")
        taken = []
        head = self.fake_free_list_head
        block = head.next_free_block
        for _ in range(n):
            assert block is not None
            taken.append(block)
            after = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = after
        assert block is not None
        head.next_free_block = block
        block.prev_free_block = head
        self.num_free_blocks -= len(taken)
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take this block. Raises RuntimeError if it is not free."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"remove() of a block that is not free: {block}")
        before.next_free_block, after.prev_free_block = after, before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the end, where it is used last."""
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the end, in their order."""
        before = self.fake_free_list_tail.prev_free_block
        assert before is not None
        self._link(before, blocks, self.fake_free_list_tail)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the front, in their order; the first of them is used next."""
        after = self.fake_free_list_head.next_free_block
        assert after is not None
        self._link(self.fake_free_list_head, blocks, after)

    def _link(
        self, before: KVCacheBlock, blocks: Sequence[KVCacheBlock], after: KVCacheBlock
    ) -> None:
        for block in blocks:
            before.next_free_block = block
            block.prev_free_block = before
            before = block
        before.next_free_block = after
        after.prev_free_block = before
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the free blocks in the order of their next use. O(n)."""
        blocks = []
        block = self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            blocks.append(block)
            block = block.next_free_block
        return blocks

    def check(self) -> None:
        """Raise BrokenInvariantError if links or the count are wrong."""
        before = self.fake_free_list_head
        for block in (*self.get_all_free_blocks(), self.fake_free_list_tail):
            if block.prev_free_block is not before or before.next_free_block is not block:
                raise BrokenInvariantError(f"{block} is linked one way only")
            before = block
        if len(self.get_all_free_blocks()) != self.num_free_blocks:
            raise BrokenInvariantError(
                f"num_free_blocks is {self.num_free_blocks}, not the queue's length"
            )
