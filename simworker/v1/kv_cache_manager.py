"""The KV cache manager: gives requests their blocks, and finds what is cached.

Source: `vllm/v1/core/kv_cache_manager.py` of 0.32, one group with full attention
(`shared/engine-events.md`, 4.3 to 4.5).
"""

from dataclasses import dataclass

from simworker.engine import BrokenInvariantError
from simworker.v1.block import KVCacheBlock
from simworker.v1.block_pool import BlockPool
from simworker.v1.kv_cache_event import CacheEvent
from simworker.v1.request import Request


@dataclass(slots=True)
class PrefixCacheStats:
    """Tokens looked up and found since the engine's start."""

    queries: int = 0
    hits: int = 0


class KVCacheManager:
    """Blocks of running requests, over one pool."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.block_pool = BlockPool(num_blocks, block_size)
        self.stats = PrefixCacheStats()
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._blocks: dict[str, list[KVCacheBlock]] = {}
        self._cached: dict[str, int] = {}
        """How many of a request's leading blocks are registered."""

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Return the leading blocks that are cached, and their tokens.

        The last token is always computed anew, so at most the blocks before it are found.
        """
        if request.skip_reading_prefix_cache:
            return [], 0
        found = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self._block_size]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            found.append(block)
        return found, len(found) * self._block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: list[KVCacheBlock] | None = None,
        *,
        full_sequence_must_fit: bool = False,
    ) -> list[KVCacheBlock] | None:
        """Give a request the blocks for its next tokens; None where they are not to be had.

        Blocks that become full are registered now, before they are computed. Raises ValueError for
        no tokens.
        """
        if num_new_tokens <= 0:
            raise ValueError("no tokens to allocate for")
        hits = new_computed_blocks or []
        held = self._blocks.get(request.request_id, [])
        computed = request.num_computed_tokens + num_new_computed_tokens
        target = min(computed + num_new_tokens, self._max_model_len)
        wanted = request.num_tokens if full_sequence_must_fit else target
        size = self._block_size
        # Hits that lie in the free queue leave it too.
        revived = sum(not block.ref_cnt for block in hits)
        free = self.block_pool.get_num_free_blocks()
        if -(-max(wanted, target) // size) - len(held) - len(hits) + revived > free:
            return None
        needed = -(-target // size) - len(held) - len(hits)
        self.block_pool.touch(hits)
        held = self._blocks.setdefault(request.request_id, [])
        held += hits
        new = self.block_pool.get_new_blocks(max(needed, 0))
        held += new
        full = min(computed + num_new_tokens, request.num_tokens) // size
        cached = self._cached.get(request.request_id, len(hits))
        self.block_pool.cache_full_blocks(request, held, cached, full)
        self._cached[request.request_id] = max(cached, full)
        return new

    def free(self, request: Request) -> None:
        """Take a request's blocks back, its last first, so that they are used anew first."""
        blocks = self._blocks.pop(request.request_id, [])
        self._cached.pop(request.request_id, None)
        self.block_pool.free_blocks(blocks[::-1])

    def get_block_ids(self, request_id: str) -> list[int]:
        """Return the ids of a request's blocks."""
        return [block.block_id for block in self._blocks.get(request_id, [])]

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False while requests run."""
        return self.block_pool.reset_prefix_cache()

    def take_events(self) -> list[CacheEvent]:
        """Return what happened to the cache since the last call."""
        return self.block_pool.take_events()

    def check(self) -> None:
        """Raise BrokenInvariantError where reference counts are not those of the requests."""
        self.block_pool.check()
        counts: dict[int, int] = {}
        for blocks in self._blocks.values():
            for block in blocks:
                counts[block.block_id] = counts.get(block.block_id, 0) + 1
        for block in self.block_pool.blocks[1:]:
            if block.ref_cnt != counts.get(block.block_id, 0):
                raise BrokenInvariantError(f"block {block.block_id}'s reference count is wrong")
