"""Both allocators of one device, and the evictor: what they promise, in any history."""

import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.evictor import LinearEvictor, LRUEvictor
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import (
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
)

SIZE = 4


def naive(num_blocks: int, block_size: int = SIZE) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(num_blocks, block_size)


def caching(num_blocks: int, block_size: int = SIZE) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size)


def chain(allocator: NaiveBlockAllocator, tokens: list[int], size: int = SIZE) -> list[Block]:
    parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return allocator.allocate_immutable_blocks(None, parts)


def ids(blocks: list[Block]) -> list[int | None]:
    return [block.block_id for block in blocks]


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


def test_without_caching_nothing_is_found() -> None:
    allocator = naive(4)
    one, other = chain(allocator, [1] * SIZE), chain(allocator, [1] * SIZE)
    assert ids(one) != ids(other)
    assert one[0].content_hash is None
    allocator.mark_blocks_as_computed([])
    assert allocator.find_cached_blocks_prefix([1, 2]) == []
    assert allocator.get_common_computed_block_ids([[0], [0]]) == []
    assert allocator.reset_prefix_cache()
    with pytest.raises(NotImplementedError):
        allocator.promote_to_immutable_block(one[0])


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


MakeEvictor = Callable[[], LinearEvictor]
each = pytest.mark.parametrize("make", [LinearEvictor, LRUEvictor])


@each
def test_a_block_that_comes_back_with_other_content_is_evicted_under_that(
    make: MakeEvictor,
) -> None:
    evictor = make()
    # Taken back and freed once more, it leaves a stale entry that only its hash tells apart.
    evictor.add(1, 101, 16, 1.0)
    evictor.remove(1)
    evictor.add(1, 202, 16, 1.0)
    assert evictor.evict() == (1, 202)
    assert not evictor.num_blocks


IDS = st.integers(0, 5)
TIMES = st.integers(-1, 3).map(float)


class HeapBesideTable(RuleBasedStateMachine):
    """The heap answers as looking through all blocks does."""

    def __init__(self) -> None:
        super().__init__()
        self.heap, self.table = LRUEvictor(), LinearEvictor()
        # So that it cleans itself within a few steps.
        self.heap.CLEANUP_THRESHOLD = 3  # type: ignore[misc]

    @rule(block_id=IDS, content_hash=st.integers(0, 3), blocks=st.integers(1, 3), now=TIMES)
    def add(self, block_id: int, content_hash: int, blocks: int, now: float) -> None:
        if block_id not in self.table:
            for evictor in (self.heap, self.table):
                evictor.add(block_id, content_hash, blocks * 16, now)

    @rule(block_id=IDS, now=TIMES)
    def update(self, block_id: int, now: float) -> None:
        if block_id in self.table:
            for evictor in (self.heap, self.table):
                evictor.update(block_id, now)

    @rule(block_id=IDS)
    def remove(self, block_id: int) -> None:
        if block_id in self.table:
            for evictor in (self.heap, self.table):
                evictor.remove(block_id)

    @precondition(lambda self: self.table.num_blocks)
    @rule()
    def evict(self) -> None:
        assert self.heap.evict() == self.table.evict()

    @invariant()
    def same(self) -> None:
        self.heap.check()
        assert self.heap.free_table == self.table.free_table
        assert self.heap.num_blocks == self.table.num_blocks


TestHeapBesideTable = long_test(HeapBesideTable)


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=2)
PICK = st.integers(0, 7)


class Chains(RuleBasedStateMachine):
    """Chains that grow, fork and end, on an allocator of 6 blocks of 2 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = self.make()
        self.chains: list[list[Block]] = []
        self.now = 0.0

    def make(self) -> NaiveBlockAllocator:
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
        assert done == (before == 6 or type(self.allocator) is NaiveBlockAllocator)
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

    def make(self) -> NaiveBlockAllocator:
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


TestChains = long_test(Chains)
TestCachingChains = long_test(CachingChains)
