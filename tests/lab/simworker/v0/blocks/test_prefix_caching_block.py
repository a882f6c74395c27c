"""Blocks found by their content: what is shared, what is kept, and what gives way."""

import re

import pytest

from tests.lab.simworker.v0.allocators import SIZE, caching, chain, ids
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import PrefixCachingBlock


def test_equal_prefixes_share_blocks_and_unequal_ones_do_not() -> None:
    allocator = caching(8)
    one = chain(allocator, [1] * 8)
    same = chain(allocator, [1] * 8)
    other = chain(allocator, [2] * 4 + [1] * 4)
    assert ids(one) == ids(same) == [0, 1]
    assert ids(other) == [2, 3]
    adapted = allocator.allocate_immutable_block(None, [1] * 4, extra_hash=7)
    assert adapted.block_id == 4


def test_a_block_filled_with_content_that_is_there_is_dropped_for_it() -> None:
    allocator = caching(4)
    [cached] = chain(allocator, [1, 2, 3, 4])
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1, 2, 3])
    assert block.block_id == 1
    block.append_token_ids([4])
    assert block.block_id == cached.block_id == 0
    assert allocator.ref_count(0) == 2
    # The block given up is the next to be taken.
    assert allocator.allocate_mutable_block(None).block_id == 1


def test_a_freed_block_is_found_until_it_is_used_anew() -> None:
    allocator = caching(2)
    blocks = chain(allocator, list(range(8)))
    for block in blocks:
        allocator.free(block)
    assert allocator.get_num_free_blocks() == 2
    again = chain(allocator, [0, 1, 2, 3])
    assert ids(again) == [0]
    allocator.allocate_mutable_block(None)
    allocator.free(again[0])
    # The tail was evicted, the head is there still.
    hashes = [block.content_hash or 0 for block in blocks]
    assert allocator.find_cached_blocks_prefix(hashes) == hashes[:1]


def test_blocks_without_content_are_taken_before_any_is_evicted() -> None:
    allocator = caching(3)
    [cached] = chain(allocator, [1] * SIZE)
    allocator.free(cached)
    assert [allocator.allocate_mutable_block(None).block_id for _ in range(3)] == [1, 2, 0]


def test_the_least_recently_used_chain_is_evicted_first_from_its_tail() -> None:
    allocator = caching(5)
    older, newer = chain(allocator, [1] * 8), chain(allocator, [2] * 12)
    for now, blocks in ((1.0, older), (2.0, newer)):
        allocator.mark_blocks_as_accessed([block.block_id or 0 for block in blocks], now)
    for block in (*newer, *older):
        allocator.free(block)
    assert [allocator.allocate_mutable_block(None).block_id for _ in range(5)] == [1, 0, 4, 3, 2]


def test_an_access_is_noted_in_use_and_in_the_cache_but_not_of_empty_blocks() -> None:
    allocator = caching(3)
    one, other = chain(allocator, [1] * 4), chain(allocator, [2] * 4)
    for blocks in (one, other):
        allocator.free(blocks[0])
    allocator.mark_blocks_as_accessed([0], 5.0)
    with pytest.raises(ValueError, match="block_ids: 2 is neither in use nor cached"):
        allocator.mark_blocks_as_accessed([2], 5.0)
    taken = [allocator.allocate_mutable_block(None).block_id for _ in range(3)]
    assert taken == [2, 1, 0]


def test_content_counts_as_computed_only_after_its_step() -> None:
    allocator = caching(4)
    blocks = chain(allocator, list(range(8)))
    hashes = [block.content_hash or 0 for block in blocks]
    assert chain(allocator, list(range(8)))[0].block_id == 0
    assert allocator.find_cached_blocks_prefix(hashes) == []
    allocator.mark_blocks_as_computed([])
    assert allocator.find_cached_blocks_prefix(hashes) == hashes
    assert allocator.find_cached_blocks_prefix([*hashes, 99]) == hashes


def test_a_cached_block_behind_a_hole_does_not_count() -> None:
    allocator = caching(3)
    blocks = chain(allocator, list(range(8)))
    hashes = [block.content_hash or 0 for block in blocks]
    allocator.mark_blocks_as_computed([])
    allocator.mark_blocks_as_accessed([0, 1], 5.0)
    for block in blocks:
        allocator.free(block)
    # Used again, and given up without an access, as a swap does, the head is older than its tail.
    [head] = chain(allocator, [0, 1, 2, 3])
    allocator.free(head)
    for _ in range(2):
        allocator.allocate_mutable_block(None)
    assert 1 in allocator.evictor
    # Bisection, which 0.9.2 uses, looks at the second first, and takes both for cached.
    assert allocator.find_cached_blocks_prefix(hashes) == []


def test_the_common_prefix_leaves_out_who_has_none() -> None:
    allocator = caching(4)
    common = allocator.get_common_computed_block_ids
    assert common([[1, 2, 3]]) == [1, 2, 3]
    assert common([[1, 2, 3], [1, 2], [1, 2, 4]]) == [1, 2]
    assert common([[1, 2], [], [1, 3]]) == [1]
    assert common([[], []]) == []
    assert common([]) == []


def test_the_hit_rate_counts_full_blocks_looked_up() -> None:
    allocator = caching(4)
    assert allocator.get_prefix_cache_hit_rate() == 0
    for expected in (0, 1 / 2, 2 / 3):
        chain(allocator, [1] * SIZE)
        assert allocator.get_prefix_cache_hit_rate() == pytest.approx(expected)
    for _ in range(2000):
        chain(allocator, [1] * SIZE)
    assert allocator.get_prefix_cache_hit_rate() == pytest.approx(2002 / 2003)


def test_a_reset_needs_every_block_free_and_forgets_all() -> None:
    allocator = caching(3)
    blocks = chain(allocator, list(range(8)))
    chain_hashes = [block.content_hash or 0 for block in blocks]
    allocator.mark_blocks_as_computed([])
    assert not allocator.reset_prefix_cache()
    allocator.free(blocks[1])
    assert not allocator.reset_prefix_cache()
    assert allocator.find_cached_blocks_prefix(chain_hashes) == chain_hashes
    allocator.free(blocks[0])
    assert allocator.reset_prefix_cache()
    assert allocator.find_cached_blocks_prefix(chain_hashes) == []
    assert allocator.get_num_free_blocks() == 3
    allocator.check()


def test_a_block_whose_prefix_is_not_full_has_no_hash() -> None:
    allocator = caching(4)
    first = allocator.allocate_mutable_block(None)
    second = allocator.allocate_mutable_block(first)
    second.append_token_ids([1, 2, 3, 4])
    assert second.content_hash is None
    allocator.free(second)
    allocator.check()
    for prev_block, tokens in ((first, [1] * 4), (None, [1] * 3)):
        with pytest.raises(ValueError, match=re.escape("whose prefix is full")):
            allocator.allocate_immutable_block(prev_block, tokens)


def test_a_hash_covers_position_prefix_tokens_and_what_else_there_is() -> None:
    of = PrefixCachingBlock.hash_block_tokens
    first = of(True, None, [1, 2])
    assert first == of(is_first_block=True, prev_block_hash=None, cur_block_token_ids=[1, 2])
    variants = {first, of(False, first, [1, 2]), of(True, None, [2, 1]), of(True, None, [1, 2], 3)}
    assert len(variants) == 4
    block = PrefixCachingBlock(None, [1, 2], 2, caching(2, 2))
    assert block.content_hash == first
    after = PrefixCachingBlock(block, [1, 2], 2, caching(2, 2))
    assert after.content_hash == of(False, first, [1, 2])
