"""Copy on write: a block that others read is copied before it is written to.

Source: `CopyOnWriteTracker` in `vllm/core/block/common.py` of 0.9.2.
"""

from collections.abc import Callable

from warmpath.lab.simworker.v0.blocks.block import Block, BlockId
from warmpath.lab.simworker.v0.blocks.ref_counter import RefCounter


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
