"""Models whose layers are all of one kind, and engines without prefix caching.

Source: `vllm/v1/core/kv_cache_coordinator.py` of 0.32.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.v1.cache.coordinator import KVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheConfig


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group. Raises ValueError unless a hash covers one of its blocks."""

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        max_in_flight_tokens: int,
        *,
        hash_block_size: int,
        **options: int,
    ) -> None:
        super().__init__(
            kv_cache_config,
            max_model_len,
            max_in_flight_tokens,
            hash_block_size=hash_block_size,
            **options,  # type: ignore[arg-type]
        )
        self.block_size = self.specs[0].block_size
        if hash_block_size != self.block_size:
            raise ValueError(
                f"hash_block_size: {hash_block_size}, with one group its block_size {self.block_size}"
            )
        self.single_type_managers[0].use_eagle = 0 in self.eagle_group_ids

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int, int]:
        """Return the group's hit, its tokens, and 0: no group has more."""
        manager = self.single_type_managers[0]
        blocks, length = manager.find_longest_cache_hit(
            block_hashes,
            max_cache_hit_length,
            (0,),
            self.block_pool,
            self.specs[0],
            manager.use_eagle,
            self.block_size,
        )
        return blocks, length, 0


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Caches no block."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Do nothing."""

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],  # noqa: ARG002
        max_cache_hit_length: int,  # noqa: ARG002
    ) -> tuple[tuple[list[KVCacheBlock], ...], int, int]:
        """Return no blocks."""
        return tuple([] for _ in self.single_type_managers), 0, 0
