"""Two pools of memory: the primary one on the GPU, the secondary one in the host's memory.

A pool is cut into slots of one block each. When a block's content moves, the block keeps its id, its key
and its place in the tree, and trades its slot with another block
(`KVCacheBlock::swapMemoryPoolBlockOffset`, TensorRT-LLM 1.2).
"""

from dataclasses import dataclass, field

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock, Slot

PRIMARY_LEVEL = 0
"""The pool on the GPU."""
SECONDARY_LEVEL = 1
"""The pool in the host's memory."""


@dataclass(slots=True)
class BlockPools:
    """All blocks of one attention window, each with a slot of its own.

    The primary pool has the lower block ids.
    """

    num_primary: int
    num_secondary: int
    blocks: list[KVCacheBlock] = field(init=False)

    def __post_init__(self) -> None:
        """Create the blocks. Raises ValueError for a primary pool below 1 or a secondary below 0."""
        if self.num_primary < 1:
            raise ValueError(f"num_primary is {self.num_primary}; it must be 1 or more")
        if self.num_secondary < 0:
            raise ValueError(f"num_secondary is {self.num_secondary}; it must be 0 or more")
        slots = [Slot(PRIMARY_LEVEL, number) for number in range(self.num_primary)]
        slots += [Slot(SECONDARY_LEVEL, number) for number in range(self.num_secondary)]
        self.blocks = [KVCacheBlock(block_id, slot) for block_id, slot in enumerate(slots)]

    def offload(self, block: KVCacheBlock, target: KVCacheBlock) -> None:
        """Copy a primary block's content to a secondary slot; the two trade slots."""
        _trade(block, target)

    def onboard(self, block: KVCacheBlock, target: KVCacheBlock) -> None:
        """Copy a secondary block's content to a primary slot; the two trade slots."""
        _trade(target, block)

    def copy_part(self, source: KVCacheBlock, target: KVCacheBlock, num_tokens: int) -> None:
        """Copy leading tokens, from a block in either pool to a block in the primary pool."""
        if not target.is_primary or num_tokens < 1:
            raise BrokenInvariantError(
                f"{num_tokens} tokens from block {source.block_id} to {target.block_id}"
            )

    def check(self) -> None:
        """Raise BrokenInvariantError unless the blocks' slots are all slots, each once."""
        slots = {block.slot for block in self.blocks}
        wanted = {Slot(PRIMARY_LEVEL, number) for number in range(self.num_primary)}
        wanted |= {Slot(SECONDARY_LEVEL, number) for number in range(self.num_secondary)}
        if slots != wanted or len(self.blocks) != len(wanted):
            raise BrokenInvariantError("the blocks' slots are not the pools' slots, each once")


def _trade(primary: KVCacheBlock, secondary: KVCacheBlock) -> None:
    if not primary.is_primary or secondary.is_primary:
        raise BrokenInvariantError(
            f"blocks {primary.block_id} and {secondary.block_id} do not lie in their pools"
        )
    primary.slot, secondary.slot = secondary.slot, primary.slot
