"""Reference counts: the number of views of each physical block.

Source: `RefCounter` in `vllm/core/block/common.py` of 0.9.2.
"""

from collections.abc import Iterable

from warmpath.lab.simworker.v0.blocks.block import BlockId


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
        """Return the number of views."""
        return self._refcounts[block_id]

    def unused(self) -> set[BlockId]:
        """Return the blocks without a view."""
        return {block_id for block_id, count in self._refcounts.items() if not count}
