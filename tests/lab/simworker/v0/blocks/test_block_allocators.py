"""What both allocators of one device promise, and what the naive one does not."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.lab.simworker.v0.allocators import SIZE, caching, chain, ids, naive
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import BlockAllocator
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlock, NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block_allocator import (
    PrefixCachingBlockAllocator,
)
from warmpath.lab.simworker.v0.blocks.sharing import CopyOnWriteTracker, RefCounter

NoFreeBlocksError = BlockAllocator.NoFreeBlocksError
Make = Callable[[int, int], BlockAllocator]


both = pytest.mark.parametrize("make", [naive, caching])


@both
def test_there_are_as_many_blocks_as_announced(make: Make) -> None:
    allocator = make(3, SIZE)
    assert allocator.get_num_total_blocks() == allocator.get_num_free_blocks() == 3
    taken = [allocator.allocate_mutable_block(None) for _ in range(3)]
    assert ids(taken) == [0, 1, 2]
    with pytest.raises(NoFreeBlocksError, match="every block is in use"):
        allocator.allocate_mutable_block(None)


@both
def test_a_block_freed_empty_is_the_next_to_be_taken(make: Make) -> None:
    allocator = make(3, SIZE)
    first = allocator.allocate_mutable_block(None)
    first_id = first.block_id
    allocator.free(first)
    assert first.block_id is None
    assert allocator.allocate_mutable_block(None).block_id == first_id
    assert allocator.allocate_mutable_block(None).block_id == 1


@both
def test_a_fork_shares_every_block_until_both_are_freed(make: Make) -> None:
    allocator = make(4, SIZE)
    blocks = chain(allocator, list(range(8)))
    forked = allocator.fork(blocks[-1])
    assert ids(forked) == ids(blocks)
    assert [block.token_ids for block in forked] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert forked[1].prev_block is forked[0]
    for block in blocks:
        allocator.free(block)
    assert allocator.get_num_free_blocks() == 2
    for block in forked:
        allocator.free(block)
    assert allocator.get_num_free_blocks() == 4
    allocator.check()


@both
def test_a_chain_longer_than_pythons_stack_is_forked(make: Make) -> None:
    allocator = make(3000, 1)
    blocks = chain(allocator, list(range(3000)), 1)
    assert ids(allocator.fork(blocks[-1])) == ids(blocks)


@both
def test_appending_to_a_shared_block_copies_it_once(make: Make) -> None:
    allocator = make(3, SIZE)
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1, 2])
    assert allocator.clear_copy_on_writes() == []
    [forked] = allocator.fork(block)
    forked.append_token_ids([3])
    assert (block.block_id, forked.block_id) == (0, 1)
    assert allocator.clear_copy_on_writes() == [(0, 1)]
    block.append_token_ids([4])
    forked.append_token_ids([5])
    assert allocator.clear_copy_on_writes() == []
    assert (block.token_ids, forked.token_ids) == ([1, 2, 4], [1, 2, 3, 5])


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
def test_a_chain_that_does_not_fit_takes_nothing(make: Make) -> None:
    allocator = make(2, SIZE)
    with pytest.raises(NoFreeBlocksError):
        chain(allocator, list(range(12)))
    assert allocator.get_num_free_blocks() == 2
    allocator.check()


@both
def test_positions_count_from_zero_whatever_the_ids(make: Make) -> None:
    kind = (
        partial(NaiveBlockAllocator, NaiveBlock) if make is naive else PrefixCachingBlockAllocator
    )
    allocator = kind(num_blocks=3, block_size=SIZE, block_ids=[30, 10, 20])
    assert allocator.all_block_ids == {10, 20, 30}
    assert [allocator.get_physical_block_id(each) for each in (10, 20, 30)] == [0, 1, 2]
    assert allocator.allocate_mutable_block(None).block_id == 30


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
            NaiveBlockAllocator(NaiveBlock, 2, SIZE, block_ids)
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


def test_moving_here_takes_a_block_for_what_is_not_in_use_here() -> None:
    there, here = caching(4), caching(4)
    moving = chain(there, list(range(8)))
    moving.append(there.allocate_mutable_block(moving[-1]))
    assert here.get_num_full_blocks_touched(moving) == 2
    cached = chain(here, [0, 1, 2, 3])
    assert here.get_num_full_blocks_touched(moving) == 1
    here.free(cached[0])
    assert here.get_num_full_blocks_touched(moving) == 2
    assert naive(4).get_num_full_blocks_touched(moving) == 2


@both
def test_blocks_swapped_to_another_allocator_keep_their_tokens(make: Make) -> None:
    there, here = make(4, SIZE), make(4, SIZE)
    here.allocate_mutable_block(None)
    moving = chain(there, list(range(8)))
    moving.append(there.allocate_mutable_block(moving[-1]))
    moving[-1].append_token_ids([8])
    there.swap_out(moving)
    assert ids(moving) == [None] * 3
    here.swap_in(moving)
    assert ids(moving) == [1, 2, 3]
    assert [token for block in moving for token in block.token_ids] == list(range(9))
    assert there.get_num_free_blocks() == 4
    there.check()
    here.check()


def test_counts_never_fall_below_zero() -> None:
    counter = RefCounter([3, 4])
    assert [counter.incr(3), counter.incr(3), counter.decr(3), counter.decr(3)] == [1, 2, 1, 0]
    with pytest.raises(AssertionError):
        counter.decr(3)
    assert counter.unused() == {3, 4}


def test_a_block_without_memory_may_be_appended_to() -> None:
    counter = RefCounter([0])
    tracker = CopyOnWriteTracker(counter)
    block = NaiveBlock(None, [], SIZE, naive(1))
    assert tracker.is_appendable(block)
    block.append_token_ids([1])
    assert block.block_id is None


@both
def test_a_lost_block_is_told(make: Make) -> None:
    allocator = make(2, SIZE)
    allocator.allocate_mutable_block(None)
    allocator.check()
    counter = (
        allocator.refcounter
        if isinstance(allocator, NaiveBlockAllocator)
        else allocator._refcounter
    )  # type: ignore[attr-defined]
    counter.decr(0)
    with pytest.raises(BrokenInvariantError, match="not all"):
        allocator.check()
