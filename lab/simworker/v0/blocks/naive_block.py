"""Blocks of one device without a prefix cache: sequences share them only by forking.

Source: `NaiveBlockAllocator` in `vllm/core/block/naive_block.py`, and `RefCounter` and
`CopyOnWriteTracker` in `vllm/core/block/common.py` of 0.9.2.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, BlockId, NoFreeBlocksError


class RefCounter:
    """A count for each of a fixed set of blocks, all 0 at first."""

    def __init__(self, all_block_indices: Iterable[BlockId]) -> None:
        self._refcounts = dict.fromkeys(all_block_indices, 0)

    def incr(self, block_id: BlockId) -> int:
        """Count one view more; return the new count."""
        self._refcounts[block_id] += 1
        return self._refcounts[block_id]

    def decr(self, block_id: BlockId) -> int:
        """Count one view less; return the new count. Raises AssertionError at 0."""
        assert self._refcounts[block_id] > 0, f"block {block_id} is not in use"
        self._refcounts[block_id] -= 1
        return self._refcounts[block_id]

    def get(self, block_id: BlockId) -> int:
        return self._refcounts[block_id]

    def unused(self) -> set[BlockId]:
        """Return the blocks without a view."""
        return {block_id for block_id, count in self._refcounts.items() if not count}


class NaiveBlockAllocator:
    """Free ids in a queue: they are taken from its left end, and put back there.

    A *mutable* block is one that is being filled; an *immutable* one is full and stays as it is.
    `block_ids` are 0 to `num_blocks` (exclusive) unless given.
    """

    block_type: ClassVar[type[Block]] = Block

    def __init__(
        self, num_blocks: int, block_size: int, block_ids: Iterable[BlockId] | None = None
    ) -> None:
        ids = list(range(num_blocks) if block_ids is None else block_ids)
        self._block_size = block_size
        self._free_block_indices = deque(ids)
        self.all_block_ids = frozenset(ids)
        """All ids of the device's blocks, free ones included."""
        self._positions = {block_id: at for at, block_id in enumerate(sorted(ids))}
        self.refcounter = RefCounter(ids)
        self._copy_on_writes: list[tuple[BlockId, BlockId]] = []

    def allocate_mutable_block(
        self, prev_block: Block | None, extra_hash: int | None = None
    ) -> Block:
        """Return an empty block after `prev_block`. Raises NoFreeBlocksError."""
        return self._block(prev_block, [], self.allocate_block_id(), extra_hash)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None = None
    ) -> Block:
        """Return a full block after `prev_block`. Raises NoFreeBlocksError."""
        return self._block(prev_block, token_ids, self.allocate_block_id(), extra_hash)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: list[list[int]],
        extra_hash: int | None = None,
    ) -> list[Block]:
        """Return a chain of full blocks after `prev_block`; all or none. Raises NoFreeBlocksError."""
        if len(block_token_ids) > len(self._free_block_indices):
            raise NoFreeBlocksError(
                f"{len(block_token_ids)} blocks needed, {len(self._free_block_indices)} are free"
            )
        blocks: list[Block] = []
        for token_ids in block_token_ids:
            prev_block = self.allocate_immutable_block(prev_block, token_ids, extra_hash)
            blocks.append(prev_block)
        return blocks

    def _block(
        self,
        prev_block: Block | None,
        token_ids: list[int],
        block_id: BlockId | None,
        extra_hash: int | None,
    ) -> Block:
        return self.block_type(prev_block, token_ids, self._block_size, self, block_id, extra_hash)

    def allocate_block_id(self) -> BlockId:
        """Take the next free id. Raises NoFreeBlocksError."""
        if not self._free_block_indices:
            raise NoFreeBlocksError("every block is in use")
        block_id = self._free_block_indices.popleft()
        self.refcounter.incr(block_id)
        return block_id

    def free_block_id(self, block_id: BlockId) -> None:
        """Decrement an id's reference count; at 0 the id is the next one to be allocated."""
        if not self.refcounter.decr(block_id):
            self._free_block_indices.appendleft(block_id)

    def free(self, block: Block) -> None:
        """Give up one use of a block; the view has no id afterwards."""
        assert block.block_id is not None, "a block without memory cannot be freed"
        self.free_block_id(block.block_id)
        block.block_id = None

    def fork(self, last_block: Block) -> list[Block]:
        """Return new views of the blocks up to `last_block`, first to last, sharing their memory.

        They begin after the last block without an id, which a sliding window has passed.
        """
        chain: list[tuple[Block, BlockId]] = []
        block: Block | None = last_block
        while block is not None and block.block_id is not None:
            chain.append((block, block.block_id))
            block = block.prev_block
        forked: list[Block] = []
        for original, block_id in reversed(chain):
            self.refcounter.incr(block_id)
            block = self._block(block, original.token_ids, block_id, original.extra_hash)
            forked.append(block)
        return forked

    def get_num_free_blocks(self) -> int:
        """Return the number of blocks that could be allocated, with or without cached content."""
        return len(self._free_block_indices)

    def get_num_total_blocks(self) -> int:
        return len(self.all_block_ids)

    def get_physical_block_id(self, absolute_id: BlockId) -> int:
        """Return an id's position within the device."""
        return self._positions[absolute_id]

    def ref_count(self, block_id: BlockId) -> int:
        """Return how many views have this id."""
        return self.refcounter.get(block_id)

    def cow_block_if_not_appendable(self, block: Block) -> BlockId:
        """Return the id of the block to append to.

        If other views use `block` too, it is a new id, and the copy of the content there becomes due.
        Full blocks are never written to again, so only a fork's last block is copied.
        """
        source = block.block_id
        assert source is not None
        if self.refcounter.get(source) <= 1:
            return source
        # The new block is taken before the old one is freed, so that a refusal changes nothing.
        target = self.allocate_block_id()
        self.free_block_id(source)
        self._copy_on_writes.append((source, target))
        return target

    def clear_copy_on_writes(self) -> list[tuple[BlockId, BlockId]]:
        """Return (source, destination) of the copies due since the last call, in order."""
        noted, self._copy_on_writes = self._copy_on_writes, []
        return noted

    def promote_to_immutable_block(self, block: Block) -> BlockId:
        """Raise NotImplementedError: full blocks are not cached here."""
        raise NotImplementedError("blocks are not promoted without prefix caching")

    def mark_blocks_as_accessed(self, block_ids: Sequence[BlockId], now: float) -> None:
        """Do nothing: free blocks keep no content."""

    def mark_blocks_as_computed(self, block_ids: Sequence[BlockId]) -> None:
        """Do nothing: no look-up asks whether a block is computed."""

    def get_common_computed_block_ids(
        self,
        computed_seq_block_ids: list[list[BlockId]],  # noqa: ARG002 - the interface's
    ) -> list[BlockId]:
        """Return an empty list: no block is known to be computed."""
        return []

    def find_cached_blocks_prefix(
        self,
        block_hashes: list[int],  # noqa: ARG002 - the interface's
    ) -> list[int]:
        """Return an empty list: no content is cached."""
        return []

    def get_num_full_blocks_touched(self, blocks: list[Block]) -> int:
        """Return the number of free blocks needed to swap in the full ones among `blocks`: one each."""
        return sum(block.is_full for block in blocks)

    def swap_out(self, blocks: list[Block]) -> None:
        """Give up the blocks' ids; they keep their tokens."""
        for block in blocks:
            self.free(block)

    def swap_in(self, blocks: list[Block]) -> None:
        """Give each block an id of its own: views that shared a block no longer do."""
        for block in blocks:
            block.block_id = self.allocate_block_id()

    def reset_prefix_cache(self) -> bool:
        """Return True: there is no content to forget."""
        return True

    def check(self) -> None:
        """Raise BrokenInvariantError unless exactly the free ids are unused."""
        free = set(self._free_block_indices)
        if len(free) != len(self._free_block_indices):
            raise BrokenInvariantError("an id is free twice")
        if free != self.refcounter.unused():
            raise BrokenInvariantError("free and used ids are not all ids")
