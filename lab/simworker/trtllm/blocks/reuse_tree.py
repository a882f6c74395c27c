"""The radix tree in which cached blocks are found.

A node is a block, the edge to it is its key, and the path from the root is the text on which the block's
content depends. Source: `mCachedBlocksRoot` of TensorRT-LLM's `WindowBlockManager`, 1.2.
"""

from collections.abc import Callable, Iterator

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block import ROOT_ID, KVCacheBlock, Slot
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey, hash_block_key


class ReuseTree:
    """Links and unlinks blocks; knows nothing of memory and references."""

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block
        self.root = KVCacheBlock(ROOT_ID, Slot(0, -1))

    def insert(self, parent: KVCacheBlock, key: BlockKey, block: KVCacheBlock) -> None:
        """Put a block, not yet in the tree, below `parent`, which is in the tree or its root."""
        if (
            block.in_tree
            or key in parent.next_blocks
            or not (parent.in_tree or parent is self.root)
        ):
            raise BrokenInvariantError(f"block {block.block_id} cannot be put into the tree here")
        block.set_key(key, self._tokens_per_block)
        block.prev_block = parent
        block.hash = hash_block_key(key, parent.hash)
        parent.next_blocks[key] = block

    def detach_leaf(self, block: KVCacheBlock) -> None:
        """Take a block without children out of the tree; it keeps its key and hash."""
        if not block.is_leaf:
            raise BrokenInvariantError(f"block {block.block_id} has children")
        if block.prev_block is None:
            raise BrokenInvariantError(f"block {block.block_id} is not in the tree")
        del block.prev_block.next_blocks[block.key]
        block.prev_block = None

    def detach_subtree(self, block: KVCacheBlock, leaving: Callable[[KVCacheBlock], None]) -> None:
        """Take a block and all below it out of the tree, children first.

        `leaving` is called with each while it is still linked; never if the block is not in the tree.
        """
        if block.in_tree:
            for one in reversed(list(self._descend(block))):
                leaving(one)
                self.detach_leaf(one)

    def walk(self) -> Iterator[KVCacheBlock]:
        """Yield all blocks in the tree, parents before their children."""
        descent = self._descend(self.root)
        next(descent)
        yield from descent

    def _descend(self, block: KVCacheBlock) -> Iterator[KVCacheBlock]:
        pending = [block]
        while pending:
            one = pending.pop()
            yield one
            pending.extend(one.next_blocks.values())

    def check(self, blocks: list[KVCacheBlock]) -> None:
        """Raise BrokenInvariantError if links, keys or hashes contradict each other.

        `blocks` are all blocks; those reachable from the root must be those with a parent.
        """
        reachable: dict[int, KVCacheBlock] = {}
        for block in self.walk():
            parent = block.prev_block
            if block.block_id in reachable or parent is None:
                raise BrokenInvariantError(
                    f"block {block.block_id} is in the tree twice, or half in it"
                )
            reachable[block.block_id] = block
            if parent.next_blocks.get(block.key) is not block:
                raise BrokenInvariantError(f"block {block.block_id} is not its parent's child")
            count = len(block.key.tokens)
            if not 0 < count <= self._tokens_per_block:
                raise BrokenInvariantError(f"block {block.block_id} holds {count} tokens")
            if block.is_full != (count == self._tokens_per_block):
                raise BrokenInvariantError(
                    f"block {block.block_id} is wrongly marked full or not full"
                )
            if not block.is_full and not block.is_leaf:
                raise BrokenInvariantError(f"block {block.block_id} has room, and children")
            if block.hash != hash_block_key(block.key, parent.hash):
                raise BrokenInvariantError(f"block {block.block_id} has another hash than its key")
        for block in blocks:
            if block.in_tree != (block.block_id in reachable):
                raise BrokenInvariantError(f"block {block.block_id} has a parent but no path")
            if not block.in_tree and block.next_blocks:
                raise BrokenInvariantError(f"block {block.block_id} has children outside the tree")
