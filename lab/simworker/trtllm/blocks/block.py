"""One block of the cache, and its place in the reuse tree.

Source: TensorRT-LLM's `KVCacheBlock` (`batch_manager/kvCacheManager.h`, 1.2). The tree's root is a
block too, with the id -1 and no memory; a block is in the tree exactly while it has a parent.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.blocks.retention import DEFAULT_PRIORITY

ROOT_ID = -1


class Slot(NamedTuple):
    """A place in a pool: level 0 is the primary pool, 1 the secondary."""

    level: int
    number: int


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """A block's memory, references and content."""

    block_id: int
    slot: Slot
    ref_count: int = 0
    """Number of sequences that hold it."""
    key: BlockKey = BlockKey(())  # noqa: RUF009  immutable
    """Key of the content that it held last; without tokens if it never held any."""
    is_full: bool = False
    hash: int = 0
    """Hash of `key` and the parent's hash; 0 for the root and for a block that was never in the tree."""
    prev_block: "KVCacheBlock | None" = None
    """Parent in the tree; None if the block is not in the tree."""
    next_blocks: "dict[BlockKey, KVCacheBlock]" = field(default_factory=dict)
    priority: int = DEFAULT_PRIORITY
    duration_ms: int | None = None
    """Time for which the priority holds once the block is free; None: for ever."""
    expiration_time: float = 0.0
    """When `duration_ms` ends, in seconds of the eviction policy's clock, while the block is free."""

    @property
    def is_primary(self) -> bool:
        """Whether the content lies on the GPU."""
        return self.slot.level == 0

    @property
    def in_tree(self) -> bool:
        """Whether requests can find it."""
        return self.prev_block is not None

    @property
    def is_leaf(self) -> bool:
        return not self.next_blocks

    def set_key(self, key: BlockKey, tokens_per_block: int) -> None:
        self.key = key
        self.is_full = len(key.tokens) == tokens_per_block

    def find_matching_block(
        self, key: BlockKey, *, enable_partial_reuse: bool, copy_on_partial_reuse: bool
    ) -> "tuple[bool, int, KVCacheBlock | None]":
        """Look for `key` among the children; return (is partial, tokens matched, block).

        With partial reuse, the child that shares most leading tokens matches too; if its content may not
        be copied, it must be unused and a leaf. Of several such children the one stored first is taken
        (in TensorRT-LLM a hash table's order decides). A child that holds just these tokens but has room
        for more counts as partial.
        """
        if not key.tokens:
            return False, 0, None
        exact = self.next_blocks.get(key)
        if exact is not None:
            return not exact.is_full, len(key.tokens), exact
        best: tuple[bool, int, KVCacheBlock | None] = (False, 0, None)
        if enable_partial_reuse:
            for child_key, child in self.next_blocks.items():
                if copy_on_partial_reuse or (child.ref_count == 0 and child.is_leaf):
                    matched = child_key.num_matching_tokens(key)
                    if matched > best[1]:
                        best = (True, matched, child)
        return best
