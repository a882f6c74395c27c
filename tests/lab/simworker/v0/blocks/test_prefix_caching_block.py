"""Blocks found by their content: what is shared, what is kept, and what gives way."""

import re

import pytest

from tests.lab.simworker.v0.allocators import caching, chain
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import PrefixCachingBlock


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
