"""A block of KV cache, and the queue of blocks that are free.

Source: `KVCacheBlock` and `FreeKVCacheBlockQueue` in `vllm/v1/core/kv_cache_utils.py`.
"""

from collections.abc import Iterable


class KVCacheBlock:
    """One block: who uses it, and which content it has cached."""

    __slots__ = ("block_hash", "block_id", "next_free", "previous_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        """Digest of the content; kept while the block is free, until it is used anew."""
        self.previous_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None


class FreeBlockQueue:
    """Free blocks, next to be used first; any block leaves in O(1)."""

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free, self._tail.previous_free = self._tail, self._head
        for block in blocks:
            self.append(block)

    def popleft(self) -> KVCacheBlock:
        """Take the block that is next. Raises ValueError where there is none."""
        block = self._head.next_free
        if block is None or block is self._tail:
            raise ValueError("no block is free")
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Take a certain block out."""
        before, after = block.previous_free, block.next_free
        if before is None or after is None:
            raise ValueError(f"block {block.block_id} is not free")
        before.next_free, after.previous_free = after, before
        block.previous_free = block.next_free = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the end: used last."""
        assert self._tail.previous_free is not None
        self._insert_after(self._tail.previous_free, block)

    def prepend(self, blocks: list[KVCacheBlock]) -> None:
        """Put blocks at the front, in their order: used first."""
        at = self._head
        for block in blocks:
            self._insert_after(at, block)
            at = block

    def _insert_after(self, before: KVCacheBlock, block: KVCacheBlock) -> None:
        after = before.next_free
        assert after is not None
        block.previous_free, block.next_free = before, after
        before.next_free = after.previous_free = block
        self.num_free_blocks += 1

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the free blocks, next to be used first."""
        blocks = []
        block = self._head.next_free
        while block is not None and block is not self._tail:
            blocks.append(block)
            block = block.next_free
        return blocks
