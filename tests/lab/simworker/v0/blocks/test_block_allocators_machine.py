"""Both allocators of one device: no block leaked, lost or shared wrongly, in any history."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v0.allocators import caching, naive
from warmpath.lab.simworker.v0.blocks.block import Block, NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.evictor import LinearEvictor
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import (
    PrefixCachingBlockAllocator,
)

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


class LinearChains(CachingChains):
    """The same, over the other evictor."""

    def make(self) -> NaiveBlockAllocator:
        return PrefixCachingBlockAllocator(6, 2, create_evictor=LinearEvictor)


TestChains = Chains.TestCase
TestCachingChains = CachingChains.TestCase
TestLinearChains = LinearChains.TestCase
TestChains.settings = LONG
TestCachingChains.settings = LONG
TestLinearChains.settings = LONG
