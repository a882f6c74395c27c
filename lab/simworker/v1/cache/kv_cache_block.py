"""Blocks of KV cache, the queue of free ones, and the map from content to those that hold it.

The queue is in the order of blocks' next use. It is a doubly linked list through the blocks themselves:
a block that a request finds cached leaves from the middle in O(1), and no further object is made for it.
The list lies between two guards, which never leave, so every block in the queue has a neighbour on both
sides; a block outside has none.

Equal content can lie in several blocks: two requests may compute it at once, and a prompt that fills its
last block always computes its last token again. Such blocks are not merged, since a request's block ids
never change.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32, `BlockHashToBlockMap` in `block_pool.py` and
`KVCacheBlocks` in `kv_cache_manager.py` there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash, BlockHashWithGroupId


class KVCacheBlock:
    """One block id's state. Blocks are compared by identity."""

    __slots__ = (
        "block_hash", "block_hash_num_tokens", "block_id", "is_null", "next_free_block",
        "prev_free_block", "ref_cnt",
    )  # fmt: skip

    def __init__(self, block_id: int, ref_cnt: int = 0, *, is_null: bool = False) -> None:
        self.block_id = block_id
        self.ref_cnt = ref_cnt
        """Number of requests that hold it; with 0 it is free. Not counted for the null block."""
        self.block_hash: BlockHashWithGroupId | None = None
        """Its key while it is cached, else None. A free block keeps it until it gets new content."""
        self.block_hash_num_tokens: int | None = None
        """Number of tokens that the hash covers, from the request's first on."""
        self.is_null = is_null
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None

    def set_block_hash(
        self, block_hash: BlockHashWithGroupId, num_tokens: int | None = None
    ) -> None:
        """Set the hash of the block's content. Raises ValueError if it has one already."""
        if self.block_hash is not None:
            raise ValueError(f"block {self.block_id} has a hash already")
        self.block_hash = block_hash
        self.block_hash_num_tokens = num_tokens

    def reset_hash(self) -> None:
        self.block_hash = None
        self.block_hash_num_tokens = None

    def __repr__(self) -> str:
        before, after = (
            None if block is None else block.block_id
            for block in (self.prev_free_block, self.next_free_block)
        )
        return (
            f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, "
            f"block_hash={self.block_hash!r}, between={before} and {after})"
        )


@dataclass(slots=True)
class KVCacheBlocks:
    """`blocks[i][j]` is the j-th block of group i."""

    blocks: Sequence[Sequence[KVCacheBlock]]

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple([block.block_id for block in group] for group in self.blocks)


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


class BlockHashToBlockMap:
    """Key -> blocks. If there are several, a look-up finds the one that has been cached longest."""

    def __init__(self) -> None:
        self._cache: dict[BlockHashWithGroupId, KVCacheBlock | dict[int, KVCacheBlock]] = {}
        """A single block is stored without a dictionary, which would take most of the memory."""

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        found = self._cache.get(key)
        if isinstance(found, dict):
            return next(iter(found.values()))
        return found

    def get_leading_blocks(
        self, block_hashes: Iterable[BlockHash], group_id: int
    ) -> list[KVCacheBlock]:
        """Return the blocks of the leading hashes, up to the first that is not cached."""
        suffix = group_id.to_bytes(4, "big")
        get = self._cache.get
        blocks: list[KVCacheBlock] = []
        for block_hash in block_hashes:
            found = get(block_hash + suffix)
            if found is None:
                break
            blocks.append(next(iter(found.values())) if isinstance(found, dict) else found)
        return blocks

    def contain(self, key: BlockHashWithGroupId, block_id: int) -> bool:
        found = self._cache.get(key)
        if isinstance(found, dict):
            return block_id in found
        return found is not None and found.block_id == block_id

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Cache a block under a key, after the blocks that are there."""
        found = self._cache.setdefault(key, block)
        if isinstance(found, dict):
            found[block.block_id] = block
        elif found is not block:
            self._cache[key] = {found.block_id: found, block.block_id: block}

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Remove a block from a key and return it; None if it is not there."""
        found = self._cache.get(key)
        if isinstance(found, dict):
            block = found.pop(block_id, None)
            if not found:
                del self._cache[key]
            return block
        if found is None or found.block_id != block_id:
            return None
        del self._cache[key]
        return found

    def __len__(self) -> int:
        return len(self._cache)

    def items(self) -> Iterator[tuple[BlockHashWithGroupId, KVCacheBlock]]:
        for key, found in self._cache.items():
            for block in found.values() if isinstance(found, dict) else (found,):
                yield key, block
