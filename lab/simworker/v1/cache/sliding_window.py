"""Groups whose layers read the last tokens only: blocks that have left the window are freed.

A hit needs only the blocks of one window before its end, so a prefix can be found after its beginning
was evicted. In the table null blocks take the place of blocks that are not needed.

Source: `SlidingWindowManager` in `vllm/v1/core/single_type_kv_cache_manager.py` of 0.32.
"""

from collections.abc import Sequence
from typing import Any

from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.single_type_manager import CacheHit, SingleTypeKVCacheManager
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.hashing.block_hash_view import resolve_block_hashes
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheSpec, SlidingWindowSpec


def _window(spec: KVCacheSpec) -> SlidingWindowSpec:
    if not isinstance(spec, SlidingWindowSpec):
        raise TypeError(f"kv_cache_spec: {type(spec).__name__} is not a sliding window")
    return spec


def _blocks_of_a_hit(spec: SlidingWindowSpec, *, drop_eagle_block: bool) -> int:
    """Return the number of consecutive blocks that a hit needs: the window without the next token.

    With `drop_eagle_block`, one block more, which the hit then drops.
    """
    return -(-(spec.sliding_window - 1) // spec.block_size) + drop_eagle_block


class SlidingWindowManager(SingleTypeKVCacheManager):
    """A hit ends where all blocks of a window are cached."""

    def __init__(self, kv_cache_spec: SlidingWindowSpec, *arguments: Any, **options: Any) -> None:
        super().__init__(kv_cache_spec, *arguments, **options)
        self.sliding_window = kv_cache_spec.sliding_window
        self._kept = kv_cache_spec.sliding_window - 1 + kv_cache_spec.extra_retained_tokens

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the number of tokens before the window of the next token.

        With a window of 4 and 7 computed tokens the next one reads tokens 4 to 6 and itself: 4 are
        skipped.
        """
        return max(0, num_computed_tokens - self._kept)

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
        """Return the hit that ends at the last aligned position before which a window is cached.

        A prefix shorter than a window is a hit if it is cached from its first block. Raises TypeError
        for another kind of spec.
        """
        spec = _window(kv_cache_spec)
        size = spec.block_size
        hashes = resolve_block_hashes(block_hashes, block_pool.hash_block_size, size)
        needed = _blocks_of_a_hit(spec, drop_eagle_block=drop_eagle_block)
        limit = max_length // size
        found = tuple([block_pool.null_block] * limit for _ in kv_cache_group_ids)
        in_a_row = 0
        for index in range(limit - 1, -1, -1):
            cached = block_pool.get_cached_block(hashes[index], kv_cache_group_ids)
            if cached is None:
                in_a_row = 0
                continue
            if in_a_row == 0 and _unaligned(index + 1 - drop_eagle_block, size, alignment_tokens):
                continue
            for blocks, block in zip(found, cached, strict=True):
                blocks[index] = block
            in_a_row += 1
            if in_a_row >= needed:
                end = index + in_a_row
                break
        else:
            end = in_a_row
            while _unaligned(end, size, alignment_tokens):
                end -= 1
        if drop_eagle_block and end:
            end -= 1
            while _unaligned(end, size, alignment_tokens):
                end -= 1
        for blocks in found:
            del blocks[end:]
        return found, end * size

    @classmethod
    def reachable_block_mask(  # noqa: PLR0917  vLLM's signature
        cls,
        start_block: int,
        end_block: int,
        alignment_tokens: int | None,
        kv_cache_spec: KVCacheSpec,
        use_eagle: bool,
        retention_interval: int | None = None,
        reachable_boundaries: Sequence[int] = (),
    ) -> list[bool] | None:
        """Return, for each block, whether it lies in a window before a position where a hit can end.

        Such positions are the multiples of the alignment, or with a `retention_interval` in tokens only
        the multiples of that interval (0: none) and the `reachable_boundaries`. If a drafter reads the
        group, a hit reaches one block beyond its end.
        """
        spec = _window(kv_cache_spec)
        size = spec.block_size
        if alignment_tokens is None or alignment_tokens % size:
            return None
        needed = _blocks_of_a_hit(spec, drop_eagle_block=use_eagle)
        beyond = int(use_eagle)
        mask = [False] * (end_block - start_block)
        segment = (alignment_tokens if retention_interval is None else retention_interval) // size
        if segment:
            if needed >= segment:
                return None
            for index in range(max(start_block, beyond), end_block):
                if (index - beyond) % segment >= segment - needed:
                    mask[index - start_block] = True
        if retention_interval is not None:
            for boundary in reachable_boundaries:
                end = boundary // alignment_tokens * alignment_tokens // size + beyond
                for index in range(max(start_block, end - needed), min(end_block, end)):
                    mask[index - start_block] = True
        return mask


def _unaligned(num_blocks: int, size: int, alignment_tokens: int) -> bool:
    return size != alignment_tokens and num_blocks * size % alignment_tokens != 0
