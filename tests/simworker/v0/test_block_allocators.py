"""Both allocators of one device: no block leaked, lost or shared wrongly, in any history."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simworker.engine import BrokenInvariantError
from simworker.v0.block import Block, BlockAllocator
from simworker.v0.copy_on_write import CopyOnWriteTracker
from simworker.v0.evictor import LinearEvictor
from simworker.v0.naive_block import NaiveBlock, NaiveBlockAllocator
from simworker.v0.prefix_caching_block import PrefixCachingBlock, PrefixCachingBlockAllocator
from simworker.v0.ref_counter import RefCounter
from tests.simworker.state_machines import LONG

NoFreeBlocksError = BlockAllocator.NoFreeBlocksError
Make = Callable[[int, int], BlockAllocator]
SIZE = 4


def naive(num_blocks: int, block_size: int = SIZE) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size)


def caching(num_blocks: int, block_size: int = SIZE) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size)


both = pytest.mark.parametrize("make", [naive, caching])


def chain(allocator: BlockAllocator, tokens: list[int], size: int = SIZE) -> list[Block]:
    parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return allocator.allocate_immutable_blocks(None, parts)


def ids(blocks: list[Block]) -> list[int | None]:
    return [block.block_id for block in blocks]


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
        with pytest.raises(ValueError, match="block_ids: 2 different ones wanted"):
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


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=2)
PICK = st.integers(0, 7)


class Chains(RuleBasedStateMachine):
    """Chains that grow, fork and end, on an allocator of 6 blocks of 2 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = self.make()
        self.chains: list[list[Block]] = []
        self.now = 0.0

    def make(self) -> BlockAllocator:
        return naive(6, 2)

    def _free(self) -> int:
        return self.allocator.get_num_free_blocks()

    def _pick(self, at: int) -> list[Block]:
        return self.chains[at % len(self.chains)]

    @rule()
    def begin(self) -> None:
        if len(self.chains) < 5:
            self.chains.append([])

    @precondition(lambda self: self.chains)
    @rule(at=PICK, tokens=TOKENS)
    def grow(self, at: int, tokens: list[int]) -> None:
        blocks = self._pick(at)
        if blocks and not blocks[-1].is_full:
            self._append(blocks[-1], tokens[: blocks[-1].num_empty_slots])
            return
        free = self._free()
        try:
            if len(tokens) == 2:
                block = self.allocator.allocate_immutable_block(
                    blocks[-1] if blocks else None, tokens
                )
            else:
                block = self.allocator.allocate_mutable_block(blocks[-1] if blocks else None)
        except NoFreeBlocksError:
            assert not free
            return
        assert free - self._free() in {0, 1}
        blocks.append(block)

    def _append(self, block: Block, tokens: list[int]) -> None:
        before, free = block.block_id, self._free()
        shared = before is not None and self.allocator.ref_count(before) > 1
        try:
            block.append_token_ids(tokens)
        except NoFreeBlocksError:
            assert shared
            assert not free
            assert block.block_id == before
            return
        copies = self.allocator.clear_copy_on_writes()
        assert [source for source, _ in copies] == [before] * shared
        if block.content_hash is None:
            assert block.block_id == (copies[0][1] if shared else before)

    @precondition(lambda self: any(self.chains))
    @rule(at=PICK)
    def fork(self, at: int) -> None:
        blocks, free = self._pick(at), self._free()
        if blocks and len(self.chains) < 5:
            self.chains.append(self.allocator.fork(blocks[-1]))
            assert self._free() == free

    @precondition(lambda self: self.chains)
    @rule(at=PICK)
    def end(self, at: int) -> None:
        for block in self.chains.pop(at % len(self.chains)):
            self.allocator.free(block)

    @precondition(lambda self: self.chains)
    @rule(at=PICK, later=st.booleans())
    def access(self, at: int, later: bool) -> None:
        self.now += later
        held = [block.block_id for block in self._pick(at) if block.block_id is not None]
        self.allocator.mark_blocks_as_accessed(held, self.now)

    @rule()
    def end_step(self) -> None:
        self.allocator.mark_blocks_as_computed([])

    @rule()
    def reset(self) -> None:
        before = self._free()
        done = self.allocator.reset_prefix_cache()
        assert done == (before == 6 or isinstance(self.allocator, NaiveBlockAllocator))
        assert self._free() == before

    @invariant()
    def nothing_is_broken(self) -> None:
        self.allocator.check()

    @invariant()
    def counts_equal_views(self) -> None:
        views = Counter(block.block_id for blocks in self.chains for block in blocks)
        assert all(self.allocator.ref_count(each) == views[each] for each in range(6))
        assert self._free() == 6 - len(views)

    @invariant()
    def a_block_is_shared_by_equal_prefixes_only(self) -> None:
        held: dict[int | None, tuple[int, ...]] = {}
        for blocks in self.chains:
            tokens: tuple[int, ...] = ()
            for block in blocks:
                tokens += tuple(block.token_ids)
                assert held.setdefault(block.block_id, tokens) == tokens


class CachingChains(Chains):
    """The same, found by content."""

    def make(self) -> BlockAllocator:
        return caching(6, 2)

    @invariant()
    def equal_full_prefixes_share_blocks(self) -> None:
        held: dict[tuple[int, ...], int | None] = {}
        for blocks in self.chains:
            tokens: tuple[int, ...] = ()
            for block in blocks:
                tokens += tuple(block.token_ids)
                if block.is_full:
                    assert held.setdefault(tokens, block.block_id) == block.block_id


class LinearChains(CachingChains):
    """The same, over the other evictor."""

    def make(self) -> BlockAllocator:
        return PrefixCachingBlockAllocator(6, 2, create_evictor=LinearEvictor)


TestChains = Chains.TestCase
TestCachingChains = CachingChains.TestCase
TestLinearChains = LinearChains.TestCase
TestChains.settings = LONG
TestCachingChains.settings = LONG
TestLinearChains.settings = LONG
