"""What both allocators of one device promise, and what the naive one does not."""

from collections.abc import Callable

import pytest

from tests.lab.simworker.v0.allocators import SIZE, caching, chain, ids, naive
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator, RefCounter

Make = Callable[[int, int], NaiveBlockAllocator]

both = pytest.mark.parametrize("make", [naive, caching])


@both
def test_a_chain_longer_than_pythons_stack_is_forked(make: Make) -> None:
    allocator = make(3000, 1)
    blocks = chain(allocator, list(range(3000)), 1)
    assert ids(allocator.fork(blocks[-1])) == ids(blocks)


@both
def test_a_copy_that_finds_no_block_changes_nothing(make: Make) -> None:
    allocator = make(1, SIZE)
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1])
    [forked] = allocator.fork(block)
    with pytest.raises(NoFreeBlocksError):
        forked.append_token_ids([2])
    assert (forked.block_id, forked.token_ids) == (0, [1])
    assert allocator.ref_count(0) == 2
    assert allocator.clear_copy_on_writes() == []
    allocator.check()


@both
def test_too_many_tokens_are_refused_and_none_is_taken(make: Make) -> None:
    block = make(2, SIZE).allocate_mutable_block(None)
    block.append_token_ids([1, 2, 3])
    with pytest.raises(ValueError, match="token_ids: 2 for 1 empty slots"):
        block.append_token_ids([4, 5])
    assert block.token_ids == [1, 2, 3]


@both
def test_what_has_no_memory_cannot_be_forked(make: Make) -> None:
    allocator = make(2, SIZE)
    block = allocator.allocate_mutable_block(None)
    allocator.free(block)
    with pytest.raises(ValueError, match="last_block: has no memory"):
        allocator.fork(block)


def test_ids_must_be_as_many_as_blocks_and_different() -> None:
    for block_ids in ([1, 1], [1], [1, 2, 3]):
        with pytest.raises(ValueError, match="block_ids: 2 different ids are needed"):
            NaiveBlockAllocator(2, SIZE, block_ids)
    with pytest.raises(ValueError, match="token_ids: 5 in a block of 4"):
        naive(1).allocate_immutable_block(None, [1] * 5)


def test_without_caching_nothing_is_found() -> None:
    allocator = naive(4)
    one, other = chain(allocator, [1] * SIZE), chain(allocator, [1] * SIZE)
    assert ids(one) != ids(other)
    assert one[0].content_hash is None
    allocator.mark_blocks_as_computed([])
    assert allocator.find_cached_blocks_prefix([1, 2]) == []
    assert allocator.get_common_computed_block_ids([[0], [0]]) == []
    assert allocator.get_prefix_cache_hit_rate() == -1
    assert allocator.reset_prefix_cache()
    with pytest.raises(NotImplementedError):
        allocator.promote_to_immutable_block(one[0])


def test_counts_never_fall_below_zero() -> None:
    counter = RefCounter([3, 4])
    assert [counter.incr(3), counter.incr(3), counter.decr(3), counter.decr(3)] == [1, 2, 1, 0]
    with pytest.raises(AssertionError):
        counter.decr(3)
    assert counter.unused() == {3, 4}


def test_a_block_without_memory_may_be_appended_to() -> None:
    block = Block(None, [], SIZE, naive(1))
    block.append_token_ids([1])
    assert block.block_id is None


@both
def test_a_lost_block_is_told(make: Make) -> None:
    allocator = make(2, SIZE)
    allocator.allocate_mutable_block(None)
    allocator.check()
    allocator.refcounter.decr(0)
    with pytest.raises(BrokenInvariantError, match="not all"):
        allocator.check()
