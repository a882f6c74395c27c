"""Blocks without a prefix cache: sequences share them only by forking.

Source: `vllm/core/block/naive_block.py` of 0.9.2, without its pool of reused block objects: Python
makes new ones as fast as it resets old ones.

Source of the null block: `NullBlock` in `vllm/core/block/cpu_gpu_block_allocator.py` of 0.9.2.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, BlockAllocator, BlockFactory, BlockId
from warmpath.lab.simworker.v0.blocks.sharing import CopyOnWriteTracker, RefCounter


class NaiveBlock:
    """A block without a content hash."""

    def __init__(  # noqa: PLR0917 - the engine's order of arguments
        self,
        prev_block: Block | None,
        token_ids: list[int],
        block_size: int,
        allocator: BlockAllocator,
        block_id: BlockId | None = None,
        extra_hash: int | None = None,
    ) -> None:
        if len(token_ids) > block_size:
            raise ValueError(f"token_ids: {len(token_ids)} in a block of {block_size}")
        self.block_id = block_id
        self.block_size = block_size
        self._prev_block = prev_block
        self._num_blocks_before = 0 if prev_block is None else prev_block.num_blocks_before + 1
        self._token_ids = list(token_ids)
        self._allocator = allocator
        self._extra_hash = extra_hash

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Fill slots; if another view shares the block, move to a block of its own first."""
        if len(token_ids) > self.num_empty_slots:
            raise ValueError(f"token_ids: {len(token_ids)} for {self.num_empty_slots} empty slots")
        if not token_ids:
            return
        if self.block_id is not None:
            self.block_id = self._allocator.cow_block_if_not_appendable(self)
        self._token_ids.extend(token_ids)

    @property
    def token_ids(self) -> list[int]:
        return self._token_ids

    @property
    def num_empty_slots(self) -> int:
        return self.block_size - len(self._token_ids)

    @property
    def is_full(self) -> bool:
        return len(self._token_ids) == self.block_size

    @property
    def prev_block(self) -> Block | None:
        return self._prev_block

    @property
    def num_blocks_before(self) -> int:
        return self._num_blocks_before

    @property
    def extra_hash(self) -> int | None:
        return self._extra_hash

    @property
    def content_hash(self) -> int | None:
        """None: no look-up is made by content."""
        return None


def fork_chain(
    last_block: Block,
    refcounter: RefCounter,
    create_block: Callable[[Block | None, list[int], BlockId, int | None], Block],
) -> list[Block]:
    """Return new views of the blocks up to `last_block`, first to last, sharing their memory.

    They begin after the last block without an id, which a sliding window has passed. Raises ValueError
    if `last_block` has no memory.
    """
    chain: list[tuple[Block, BlockId]] = []
    block: Block | None = last_block
    while block is not None and block.block_id is not None:
        chain.append((block, block.block_id))
        block = block.prev_block
    if not chain:
        raise ValueError("last_block: has no memory to share")
    forked: list[Block] = []
    for original, block_id in reversed(chain):
        refcounter.incr(block_id)
        block = create_block(block, original.token_ids, block_id, original.extra_hash)
        forked.append(block)
    return forked


class NaiveBlockAllocator(BlockAllocator):
    """Free ids in a queue: they are taken from its left end, and put back there.

    `create_block` makes the views. `block_ids` are 0 to `num_blocks` (exclusive) unless given.
    """

    def __init__(
        self,
        create_block: BlockFactory,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[BlockId] | None = None,
    ) -> None:
        ids = list(range(num_blocks) if block_ids is None else block_ids)
        if len(set(ids)) != num_blocks or len(ids) != num_blocks:
            raise ValueError(f"block_ids: {num_blocks} different ids are needed, not {ids}")
        self._create_block = create_block
        self._block_size = block_size
        self._free_block_indices = deque(ids)
        self._all_block_indices = frozenset(ids)
        self._positions = {block_id: at for at, block_id in enumerate(sorted(ids))}
        self.refcounter = RefCounter(ids)
        self._cow_tracker = CopyOnWriteTracker(self.refcounter)

    def allocate_mutable_block(
        self, prev_block: Block | None, extra_hash: int | None = None
    ) -> Block:
        return self._block(prev_block, [], self.allocate_block_id(), extra_hash)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None = None
    ) -> Block:
        return self._block(prev_block, token_ids, self.allocate_block_id(), extra_hash)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: list[list[int]],
        extra_hash: int | None = None,
    ) -> list[Block]:
        """Return a chain of blocks after `prev_block`; all or none. Raises NoFreeBlocksError."""
        if len(block_token_ids) > len(self._free_block_indices):
            raise BlockAllocator.NoFreeBlocksError(
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
        block_id: BlockId,
        extra_hash: int | None,
    ) -> Block:
        return self._create_block(
            prev_block=prev_block,
            token_ids=token_ids,
            block_size=self._block_size,
            allocator=self,
            block_id=block_id,
            extra_hash=extra_hash,
        )

    def allocate_block_id(self) -> BlockId:
        """Take the next free id. Raises NoFreeBlocksError."""
        if not self._free_block_indices:
            raise BlockAllocator.NoFreeBlocksError("every block is in use")
        block_id = self._free_block_indices.popleft()
        self.refcounter.incr(block_id)
        return block_id

    def free_block_id(self, block_id: BlockId) -> None:
        """Decrement an id's reference count; at 0 the id is the next one to be allocated."""
        if not self.refcounter.decr(block_id):
            self._free_block_indices.appendleft(block_id)

    def free(self, block: Block) -> None:
        """Decrement a block's reference count; this view of it has no id afterwards."""
        assert block.block_id is not None, "a block without memory cannot be freed"
        self.free_block_id(block.block_id)
        block.block_id = None

    def fork(self, last_block: Block) -> list[Block]:
        return fork_chain(last_block, self.refcounter, self._block)

    def get_num_free_blocks(self) -> int:
        return len(self._free_block_indices)

    def get_num_total_blocks(self) -> int:
        return len(self._all_block_indices)

    def get_physical_block_id(self, absolute_id: BlockId) -> int:
        return self._positions[absolute_id]

    @property
    def all_block_ids(self) -> frozenset[BlockId]:
        return self._all_block_indices

    def ref_count(self, block_id: BlockId) -> int:
        return self.refcounter.get(block_id)

    def cow_block_if_not_appendable(self, block: Block) -> BlockId:
        """Return the id to append to: a new one, and a copy due, if another sequence uses the block."""
        return self._cow_tracker.cow_block_if_not_appendable(
            block, self.allocate_block_id, self.free_block_id
        )

    def clear_copy_on_writes(self) -> list[tuple[BlockId, BlockId]]:
        return self._cow_tracker.clear_cows()

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

    def get_prefix_cache_hit_rate(self) -> float:
        """Return -1: there is no prefix cache."""
        return -1

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


class NullBlock:
    """Wraps an ordinary block that no sequence writes or reads, so that tables keep their positions."""

    def __init__(self, proxy: Block) -> None:
        self._proxy = proxy

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Raise ValueError: the null block holds no tokens."""
        raise ValueError(f"token_ids: {len(token_ids)} for the null block")

    @property
    def block_id(self) -> BlockId | None:
        """The physical block, on the GPU."""
        return self._proxy.block_id

    @block_id.setter
    def block_id(self, value: BlockId | None) -> None:
        raise ValueError(f"block_id: {value} for the null block, which stays where it is")

    @property
    def token_ids(self) -> list[int]:
        return self._proxy.token_ids

    @property
    def num_empty_slots(self) -> int:
        """The block's size; none of the slots may be filled."""
        return self._proxy.num_empty_slots

    @property
    def is_full(self) -> bool:
        return self._proxy.is_full

    @property
    def prev_block(self) -> Block | None:
        return None

    @property
    def num_blocks_before(self) -> int:
        return 0

    @property
    def extra_hash(self) -> int | None:
        return None

    @property
    def content_hash(self) -> int | None:
        return None
