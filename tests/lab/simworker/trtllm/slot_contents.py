"""Pools with contents: for each token its prefix, on which its keys and values depend."""

from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock, Slot
from warmpath.lab.simworker.trtllm.blocks.pools import BlockPools

Prefix = tuple[int, ...]


class SlotContents(BlockPools):
    """Moves contents as the real pools do; `blocks` are those of the manager under test."""

    @classmethod
    def of(cls, pools: BlockPools) -> "SlotContents":
        contents = cls(pools.num_primary, pools.num_secondary)
        contents.blocks = pools.blocks
        return contents

    def __post_init__(self) -> None:
        super().__post_init__()
        self.held: dict[Slot, list[Prefix | None]] = {}

    def write(self, block: KVCacheBlock, offset: int, prefix: Prefix) -> None:
        """Compute a token at `offset` in its block; `prefix` ends with this token."""
        assert block.is_primary
        assert block.ref_count
        row = self.held.setdefault(block.slot, [])
        row.extend([None] * (offset + 1 - len(row)))
        row[offset] = prefix

    def read(self, block: KVCacheBlock, count: int) -> list[Prefix | None]:
        return self.held.get(block.slot, [])[:count]

    def offload(self, block: KVCacheBlock, target: KVCacheBlock) -> None:
        content = self.held.get(block.slot, [])
        super().offload(block, target)
        self.held[block.slot] = list(content)

    def onboard(self, block: KVCacheBlock, target: KVCacheBlock) -> None:
        content = self.held.get(block.slot, [])
        super().onboard(block, target)
        self.held[block.slot] = list(content)

    def copy_part(self, source: KVCacheBlock, target: KVCacheBlock, num_tokens: int) -> None:
        super().copy_part(source, target, num_tokens)
        self.held[target.slot] = self.held.get(source.slot, [])[:num_tokens]
