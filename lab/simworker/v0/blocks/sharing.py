"""What allocators count: views of a block, copies on write, uses, and the prefix cache's hit rate.

Source: `vllm/core/block/common.py` and, for `BlockTracker`, `prefix_caching_block.py` of 0.9.2. There
`CacheMetricData` averages over thousands of queries at a time so that no counter overflows; with
Python's integers the quotient is the same.
"""

from collections.abc import Callable, Iterable

from warmpath.lab.simworker.v0.blocks.block import Block, BlockId


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


class CopyOnWriteTracker:
    """The copies to make before the next forward pass writes.

    Forks share all blocks. Full ones are never written to again, so only a fork's last block is copied:
    when one of its owners appends while another one still uses it.
    """

    def __init__(self, refcounter: RefCounter) -> None:
        self._refcounter = refcounter
        self._copy_on_writes: list[tuple[BlockId, BlockId]] = []

    def is_appendable(self, block: Block) -> bool:
        """Whether a block may be written in place, since no other sequence uses it."""
        return block.block_id is None or self._refcounter.get(block.block_id) <= 1

    def cow_block_if_not_appendable(
        self,
        block: Block,
        allocate_block_id: Callable[[], BlockId],
        free_block_id: Callable[[BlockId], None],
    ) -> BlockId:
        """Return the id of the block to append to.

        If other views use `block` too, it is a new id, and the copy of the content there becomes due.
        """
        source = block.block_id
        assert source is not None
        if self.is_appendable(block):
            return source
        # The new block is taken before the old one is freed, so that a refusal changes nothing.
        target = allocate_block_id()
        free_block_id(source)
        self._copy_on_writes.append((source, target))
        return target

    def clear_cows(self) -> list[tuple[BlockId, BlockId]]:
        """Return (source, destination) of the copies due since the last call, in order."""
        noted, self._copy_on_writes = self._copy_on_writes, []
        return noted


class BlockTracker:
    """Whether a block is in use, when it was read, and whether its content is computed."""

    __slots__ = ("active", "computed", "last_accessed")

    def __init__(self) -> None:
        self.active = False
        self.last_accessed = -1.0
        """Seconds; -1 if never set."""
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


class CacheMetricData:
    """Counts of look-ups of full blocks, and of those that hit."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_hits = 0

    def query(self, *, hit: bool) -> None:
        self.num_queries += 1
        self.num_hits += hit

    def get_hit_rate(self) -> float:
        """Return hits per query, 0 to 1; 0 before the first query."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0
