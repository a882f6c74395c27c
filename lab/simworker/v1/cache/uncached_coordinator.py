"""Engines without prefix caching: groups share a pool, and no look-up hits.

Source: `KVCacheCoordinatorNoPrefixCache` in `vllm/v1/core/kv_cache_coordinator.py` of 0.32.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.v1.cache.coordinator import KVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.requests.request import Request


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
