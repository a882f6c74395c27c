"""The map from content to the blocks that hold it.

Equal content can lie in several blocks: two requests may compute it at once, and a prompt that fills its
last block always computes its last token again. Such blocks are not merged, since a request's block ids
never change.

Source: `BlockHashToBlockMap` in `vllm/v1/core/block_pool.py` of 0.32.
"""

from collections.abc import Iterable, Iterator

from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash, BlockHashWithGroupId


class BlockHashToBlockMap:
    """Key -> blocks. If there are several, a look-up finds the one that has been cached longest."""

    def __init__(self) -> None:
        self._cache: dict[BlockHashWithGroupId, KVCacheBlock | dict[int, KVCacheBlock]] = {}
        """A single block is stored without a dictionary, which would take most of the memory."""

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        found = self._cache.get(key)
        if isinstance(found, dict):
            return next(iter(found.values()))
        return found

    def get_leading_blocks(
        self, block_hashes: Iterable[BlockHash], group_id: int
    ) -> list[KVCacheBlock]:
        """Return the blocks of the leading hashes, up to the first that is not cached."""
        suffix = group_id.to_bytes(4, "big")
        get = self._cache.get
        blocks: list[KVCacheBlock] = []
        for block_hash in block_hashes:
            found = get(block_hash + suffix)
            if found is None:
                break
            blocks.append(next(iter(found.values())) if isinstance(found, dict) else found)
        return blocks

    def contain(self, key: BlockHashWithGroupId, block_id: int) -> bool:
        found = self._cache.get(key)
        if isinstance(found, dict):
            return block_id in found
        return found is not None and found.block_id == block_id

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Cache a block under a key, after the blocks that are there."""
        found = self._cache.setdefault(key, block)
        if isinstance(found, dict):
            found[block.block_id] = block
        elif found is not block:
            self._cache[key] = {found.block_id: found, block.block_id: block}

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Remove a block from a key and return it; None if it is not there."""
        found = self._cache.get(key)
        if isinstance(found, dict):
            block = found.pop(block_id, None)
            if not found:
                del self._cache[key]
            return block
        if found is None or found.block_id != block_id:
            return None
        del self._cache[key]
        return found

    def __len__(self) -> int:
        return len(self._cache)

    def items(self) -> Iterator[tuple[BlockHashWithGroupId, KVCacheBlock]]:
        for key, found in self._cache.items():
            for block in found.values() if isinstance(found, dict) else (found,):
                yield key, block
