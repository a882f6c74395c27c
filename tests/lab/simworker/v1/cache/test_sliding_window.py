"""Groups with a sliding window: what leaves it, and what a hit needs of it."""

import pytest

from tests.lab.simworker.v1.small_cache import full, window
from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.full_attention import FullAttentionManager
from warmpath.lab.simworker.v1.cache.sliding_window import SlidingWindowManager
from warmpath.lab.simworker.v1.hashing.block_hash import make_block_hash_with_group_id


def group(tokens: int, size: int = 2, cap: int | None = None) -> SlidingWindowManager:
    pool = BlockPool(100, True, size)
    return SlidingWindowManager(
        window(tokens, size), pool, True, 0, size, max_admission_blocks_per_request=cap
    )


def hit(
    one: SlidingWindowManager, cached: str, *, drop: bool = False, alignment: int | None = None
) -> list[int]:
    """Look a request up; its blocks marked "x" are cached, block i as block i + 10."""
    hashes = [str(at).encode() for at in range(len(cached))]
    for at, mark in enumerate(cached):
        if mark == "x":
            key = make_block_hash_with_group_id(hashes[at], 0)
            one.block_pool.cached_block_hash_to_block.insert(key, one.block_pool.blocks[at + 10])
    size = one.block_size
    (blocks,), length = one.find_longest_cache_hit(
        block_hashes=hashes,
        max_length=len(cached) * size + size - 1,
        kv_cache_group_ids=[0],
        block_pool=one.block_pool,
        kv_cache_spec=one.kv_cache_spec,
        drop_eagle_block=drop,
        alignment_tokens=alignment or size,
    )
    assert length == len(blocks) * size
    return [block.block_id for block in blocks]


def test_external_tokens_before_the_window_take_no_blocks() -> None:
    one = group(4)
    one.add_local_computed_blocks("a", [], 0, 10)
    one.allocate_external_computed_blocks("a", 0, 10)
    assert [block.block_id for block in one.req_to_blocks["a"]] == [0, 0, 0, 1, 2]
    tiny = group(1)
    tiny.add_local_computed_blocks("a", [], 0, 4)
    tiny.allocate_external_computed_blocks("a", 0, 4)
    assert tiny.req_to_blocks["a"] == [tiny.block_pool.null_block] * 2


def test_an_alignment_that_is_none_of_the_blocks_leaves_nothing_out() -> None:
    spec = window(16, 16)
    for alignment in (None, 8, 24):
        assert SlidingWindowManager.reachable_block_mask(0, 4, alignment, spec, False) is None


def test_a_manager_of_another_kind_of_group_is_refused() -> None:
    pool = BlockPool(4, True, 4)
    with pytest.raises(TypeError, match="FullAttentionSpec is not a sliding window"):
        SlidingWindowManager.find_longest_cache_hit([], 4, [0], pool, full(), False, 4)
    with pytest.raises(TypeError, match="SlidingWindowSpec is not full attention"):
        FullAttentionManager.find_longest_cache_hit([], 4, [0], pool, window(4), False, 4)
    with pytest.raises(ValueError, match="alignment_tokens: 2 is not a multiple of 4"):
        FullAttentionManager.find_longest_cache_hit([], 4, [0], pool, full(), False, 2)
