"""Groups whose layers read all tokens: every block is kept until the request ends.

Source: `FullAttentionManager` in `vllm/v1/core/single_type_kv_cache_manager.py` of 0.32.
"""

from collections.abc import Sequence
from itertools import islice

from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.cache.single_type_manager import CacheHit, SingleTypeKVCacheManager
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.hashing.block_hash_view import resolve_block_hashes
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.specs.kv_cache_spec import FullAttentionSpec, KVCacheSpec


class FullAttentionManager(SingleTypeKVCacheManager):
    """A hit is a run of blocks from the first on."""

    @classmethod
    def find_longest_cache_hit(  # noqa: PLR0917  vLLM's signature
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        alignment_tokens: int,
    ) -> CacheHit:
        """Return the leading blocks that are cached in all groups.

        Raises TypeError for another kind of spec, ValueError for an alignment finer than a block: only
        models with state-space layers have hits that end within a block.
        """
        if not isinstance(kv_cache_spec, FullAttentionSpec):
            raise TypeError(f"kv_cache_spec: {type(kv_cache_spec).__name__} is not full attention")
        size = kv_cache_spec.block_size
        if alignment_tokens % size:
            raise ValueError(f"alignment_tokens: {alignment_tokens} is not a multiple of {size}")
        hashes = resolve_block_hashes(block_hashes, block_pool.hash_block_size, size)
        found: list[list[KVCacheBlock]] = []
        limit = max_length // size
        for group_id in kv_cache_group_ids:
            leading = block_pool.cached_block_hash_to_block.get_leading_blocks(
                islice(hashes, limit), group_id
            )
            found.append(leading)
            limit = len(leading)
        if drop_eagle_block and limit:
            limit -= 1
        limit -= limit * size % alignment_tokens // size
        for blocks in found:
            del blocks[limit:]
        return tuple(found), limit * size

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        *,
        replay_boundaries: Sequence[int] = (),
    ) -> None:
        """Cache full blocks, and the prompt's tail if hashes are finer than blocks.

        The tail is cached under the last hash that ends before the prompt's last token: another request
        with the same prompt could use no more.
        """
        super().cache_blocks(
            request, num_tokens, retention_interval, replay_boundaries=replay_boundaries
        )
        fine = self.block_pool.hash_block_size
        if fine == self.block_size:
            return
        prompt = request.num_prompt_tokens - (0 if self.use_eagle else 1)
        boundary = prompt // fine * fine
        if boundary <= 0 or boundary > num_tokens or boundary % self.block_size == 0:
            return
        blocks = self.req_to_blocks[request.request_id]
        index = boundary // self.block_size
        if index < len(blocks):
            self.block_pool.cache_partial_block(
                request, blocks[index], boundary, self.kv_cache_group_id, self.block_size
            )
