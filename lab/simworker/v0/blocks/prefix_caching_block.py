"""Blocks found by their content, on one device, so that equal prefixes share memory.

Source: `vllm/core/block/prefix_caching_block.py` of 0.9.2. Unlike v1, v0 never keeps equal content
twice: a block that fills up with content that another block has already is dropped in favour of that
block. Its rate of hits is left out: the engine counts them.
"""

from collections.abc import Iterable, Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, BlockId, NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.evictor import LRUEvictor
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator


class PrefixCachingBlock(Block):
    """A block that has a content hash once it and all blocks before it are full."""

    # The hash of a string depends on the process's seed, so nobody outside can aim at a collision. No
    # hash leaves the process, so none has to be reproducible.
    _none_hash = hash("None")

    _content_hash: int | None = None

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Fill slots; if another view shares the block, move to a block of its own first.

        A block that is full then becomes immutable, and moves to the block that has this content
        already, if there is one.
        """
        super().append_token_ids(token_ids)
        if token_ids and self.content_hash is not None:
            self.block_id = self.allocator.promote_to_immutable_block(self)

    @property
    def content_hash(self) -> int | None:
        """Hash of this and all earlier tokens; None unless this and all earlier blocks are full."""
        if self._content_hash is None and self.is_full:
            previous = self._none_hash if self.prev_block is None else self.prev_block.content_hash
            if self.prev_block is None or previous not in {None, self._none_hash}:
                self._content_hash = self.hash_block_tokens(
                    self.prev_block is None, previous, self.token_ids, self.extra_hash
                )
        return self._content_hash

    @classmethod
    def hash_block_tokens(
        cls,
        is_first_block: bool,
        prev_block_hash: int | None,
        cur_block_token_ids: Sequence[int],
        extra_hash: int | None = None,
    ) -> int:
        """Return the hash of a full block.

        It covers whether the block is the first, the hash of the one before, the tokens, and the extra
        hash.
        """
        if is_first_block and prev_block_hash is None:
            prev_block_hash = cls._none_hash
        return hash((is_first_block, prev_block_hash, *cur_block_token_ids, extra_hash))


class BlockTracker:
    """Whether a block is in use, when it was read, and whether its content is computed."""

    __slots__ = ("active", "computed", "last_accessed")

    def __init__(self) -> None:
        self.active = False
        self.last_accessed = -1.0
        """When the block was last read, in seconds; -1 if never set."""
        self.computed = False
        """Whether the step that filled it is over; look-ups find its content before that."""

    def enable(self, *, computed: bool) -> None:
        assert not self.active
        self.active = True
        self.last_accessed = -1.0
        self.computed = computed

    def disable(self) -> None:
        assert self.active
        self.active = False
        self.last_accessed = -1.0
        self.computed = False


class PrefixCachingBlockAllocator(NaiveBlockAllocator):
    """Ids of blocks, and the content of each.

    An id is in one of three states: *free* without content, in the naive allocator's queue; *in use*;
    or *cached*, in the evictor: no sequence uses it, but its content can still be found. Free ids are
    handed out first, then the evictor's least recently used.
    """

    block_type = PrefixCachingBlock

    def __init__(
        self, num_blocks: int, block_size: int, block_ids: Iterable[BlockId] | None = None
    ) -> None:
        super().__init__(num_blocks, block_size, block_ids)
        self._block_tracker = {block_id: BlockTracker() for block_id in self.all_block_ids}
        self._cached_blocks: dict[int, BlockId] = {}
        """Content hash to block, in use or in the evictor."""
        self._touched_blocks: set[BlockId] = set()
        """Blocks filled in the step that is being scheduled, even if they were freed since."""
        self.evictor = LRUEvictor()

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None = None
    ) -> Block:
        """Return a full block after `prev_block`, cached or new. Raises NoFreeBlocksError."""
        block = self._block(prev_block, token_ids, None, extra_hash)
        if block.content_hash is None:
            raise ValueError(
                f"token_ids: {len(token_ids)} after "
                f"{'nothing' if prev_block is None else prev_block} fill no block of "
                f"{self._block_size} whose prefix is full"
            )
        cached = self._cached_blocks.get(block.content_hash)
        if cached is None:
            block.block_id = self.allocate_block_id()
            self.promote_to_immutable_block(block)
        else:
            block.block_id = cached
            self._use_cached(cached)
        return block

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: list[list[int]],
        extra_hash: int | None = None,
    ) -> list[Block]:
        blocks: list[Block] = []
        try:
            for token_ids in block_token_ids:
                prev_block = self.allocate_immutable_block(prev_block, token_ids, extra_hash)
                blocks.append(prev_block)
        except NoFreeBlocksError:
            for block in blocks:
                self.free(block)
            raise
        return blocks

    def allocate_block_id(self) -> BlockId:
        if self._free_block_indices:
            block_id = super().allocate_block_id()
        elif self.evictor.num_blocks:
            block_id = self._evict()
            self.refcounter.incr(block_id)
        else:
            raise NoFreeBlocksError("every block is in use")
        self._block_tracker[block_id].enable(computed=False)
        return block_id

    def _evict(self) -> BlockId:
        block_id, content_hash = self.evictor.evict()
        del self._cached_blocks[content_hash]
        return block_id

    def _use_cached(self, block_id: BlockId) -> None:
        if self.refcounter.incr(block_id) == 1:
            self.evictor.remove(block_id)
            self._block_tracker[block_id].enable(computed=True)

    def free(self, block: Block) -> None:
        """Give up one use of a block; the view has no id afterwards. Full blocks stay cached."""
        block_id = block.block_id
        assert block_id is not None, "a block without memory cannot be freed"
        if block.content_hash is None:
            self.free_block_id(block_id)
        elif not self.refcounter.decr(block_id):
            self.evictor.add(
                block_id,
                block.content_hash,
                (block.num_blocks_before + 1) * self._block_size,
                self._block_tracker[block_id].last_accessed,
            )
            self._block_tracker[block_id].disable()
        block.block_id = None

    def free_block_id(self, block_id: BlockId) -> None:
        """Give up one use of an id without content."""
        if self.refcounter.get(block_id) == 1:
            self._block_tracker[block_id].disable()
        super().free_block_id(block_id)

    def get_num_free_blocks(self) -> int:
        """Return the number of blocks that could be allocated: free ones and cached ones."""
        return super().get_num_free_blocks() + self.evictor.num_blocks

    def block_is_computed(self, block_id: BlockId) -> bool:
        """Whether a block's content is computed; always true of a block in the evictor."""
        tracker = self._block_tracker[block_id]
        return tracker.computed if tracker.active else block_id in self.evictor

    def promote_to_immutable_block(self, block: Block) -> BlockId:
        """Cache a block that was just filled; return its id.

        If another block has the content already, that one is used instead and this one freed.
        """
        assert block.content_hash is not None
        assert block.block_id is not None
        cached = self._cached_blocks.get(block.content_hash)
        if cached is not None:
            self.free_block_id(block.block_id)
            self._use_cached(cached)
            return cached
        self._cached_blocks[block.content_hash] = block.block_id
        # Other sequences of the batch share it from now on, but only this step computes it.
        self._touched_blocks.add(block.block_id)
        return block.block_id

    def mark_blocks_as_accessed(self, block_ids: Sequence[BlockId], now: float) -> None:
        """Record `now`, in seconds, as the time when blocks were last read.

        Raises ValueError for a block that is neither in use nor cached.
        """
        for block_id in block_ids:
            if self._block_tracker[block_id].active:
                self._block_tracker[block_id].last_accessed = now
            elif block_id in self.evictor:
                self.evictor.update(block_id, now)
            else:
                raise ValueError(f"block_ids: {block_id} is neither in use nor cached")

    def mark_blocks_as_computed(
        self,
        block_ids: Sequence[BlockId],  # noqa: ARG002 - the interface's; 0.9.2 passes none
    ) -> None:
        """Count every block filled so far as computed.

        As in 0.9.2, these are all blocks of a prompt at the end of the step that allocates them, even if
        chunked prefill computes the later ones in later steps.
        """
        for block_id in self._touched_blocks:
            self._block_tracker[block_id].computed = True
        self._touched_blocks.clear()

    def get_common_computed_block_ids(
        self, computed_seq_block_ids: list[list[BlockId]]
    ) -> list[BlockId]:
        """Return the leading ids that all sequences share; sequences without ids do not count."""
        if len(computed_seq_block_ids) == 1:
            return computed_seq_block_ids[0]
        common: list[BlockId] = []
        for first, *others in zip(*filter(None, computed_seq_block_ids), strict=False):
            if any(other != first for other in others):
                break
            common.append(first)
        return common

    def find_cached_blocks_prefix(self, block_hashes: list[int]) -> list[int]:
        """Return the leading hashes whose content is cached and computed.

        Stops at the first that is not. 0.9.2 finds that one by bisection, which assumes that all
        ancestors of a cached block are cached; after a swap, an ancestor can be evicted first, and
        bisection would then count blocks after the missing one.
        """
        for at, block_hash in enumerate(block_hashes):
            block_id = self._cached_blocks.get(block_hash)
            if block_id is None or not self.block_is_computed(block_id):
                return block_hashes[:at]
        return block_hashes

    def get_num_full_blocks_touched(self, blocks: list[Block]) -> int:
        """Return the number of free blocks needed to swap in the full blocks among `blocks`.

        Content of a block in use needs none; content in the evictor needs the block there.
        """
        return sum(
            block.is_full
            and (
                block.content_hash not in self._cached_blocks
                or self._cached_blocks[block.content_hash] in self.evictor
            )
            for block in blocks
        )

    def swap_in(self, blocks: list[Block]) -> None:
        """Give each block, which keeps its tokens, an id of this device; full ones may share one."""
        for block in blocks:
            allocated = (
                self.allocate_immutable_block(block.prev_block, block.token_ids, block.extra_hash)
                if block.is_full
                else self.allocate_mutable_block(block.prev_block, block.extra_hash)
            )
            block.block_id = allocated.block_id

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False, and nothing done, while blocks are in use."""
        if self.get_num_free_blocks() < self.get_num_total_blocks():
            return False
        while self.evictor.num_blocks:
            block_id = self._evict()
            self.refcounter.incr(block_id)
            super().free_block_id(block_id)
        self.evictor = LRUEvictor()
        return True

    def check(self) -> None:
        free = self._free_block_indices
        unused = self.refcounter.unused()
        cached = {block_id for block_id in unused if block_id in self.evictor}
        if len(set(free)) != len(free) or set(free) & cached:
            raise BrokenInvariantError("an id is free twice")
        if set(free) | cached != unused or self.evictor.num_blocks != len(cached):
            raise BrokenInvariantError("free, cached and used ids are not all ids")
        for block_id, tracker in self._block_tracker.items():
            if tracker.active == (block_id in unused):
                raise BrokenInvariantError(f"the tracker of block {block_id} contradicts its count")
        found = set(self._cached_blocks.values())
        if len(found) != len(self._cached_blocks):
            raise BrokenInvariantError("a block has two contents")
        if not cached <= found or found & set(free):
            raise BrokenInvariantError("the blocks with content are not those in the cache")
        self.evictor.check()
