"""One window: whatever happens, every cached block and every sequence reads back what it should."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.trtllm.slot_contents import SlotContents
from tests.lab.simworker.trtllm.token_texts import texts
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import NoFreeBlocksError
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.blocks.retention import TokenRangeRetentionConfig as Range
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.window_block_manager import WindowBlockManager
from warmpath.lab.simworker.trtllm.requests.llm_request import GenerationRequest, LlmRequest

SIZE = 2


class Bench:
    """A window whose pools hold something, and the requests in it."""

    def __init__(
        self,
        window: int = 64,
        primary: int = 6,
        secondary: int = 0,
        *,
        is_swa: bool = False,
        **options: Any,
    ) -> None:
        self.now = 0.0
        self.manager = WindowBlockManager(
            window,
            primary,
            secondary,
            CacheOptions(SIZE, clock=lambda: self.now, **options),
            is_swa=is_swa,
        )
        self.contents = SlotContents.of(self.manager.cache.pools)
        self.manager.cache.pools = self.contents
        self.requests: dict[int, LlmRequest] = {}
        self.sequences: dict[int, GenerationRequest] = {}
        self.next_id = 0

    def add(self, tokens: list[int], retention: KvCacheRetentionConfig | None = None) -> int:
        """Add a sequence and compute what was not found of it; return its id."""
        request = LlmRequest(self.next_id, list(tokens), retention=retention)
        window = self.manager.window_size
        sequence = GenerationRequest(
            self.next_id,
            len(tokens),
            {window: []},
            {window: 0},
            retention or KvCacheRetentionConfig(),
        )
        found = self.manager.add_sequence(sequence, len(tokens), request)
        self.next_id += 1
        self.requests[request.request_id] = request
        self.sequences[request.request_id] = sequence
        request.prepopulated_prompt_len = found
        assert found < len(tokens)
        # What is said to be cached must be there before anything else is computed.
        assert self.readable(request.request_id)[:found] == prefixes(tokens)[:found]
        for position in range(found, len(tokens)):
            self.compute(request.request_id, position)
        return request.request_id

    def compute(self, name: int, position: int) -> None:
        block_id = self.sequences[name].cache_block_ids[self.manager.window_size][position // SIZE]
        prefix = tuple(self.requests[name].tokens[: position + 1])
        self.contents.write(self.manager.get_block_by_id(block_id), position % SIZE, prefix)

    def grow(self, name: int, token: int) -> bool:
        """Add a token; return whether there was room."""
        sequence = self.sequences[name]
        if not self.manager.can_adjust(sequence):
            return False
        self.requests[name].add_new_token(token)
        sequence.num_tokens += 1
        self.manager.adjust_blocks_if_needed(sequence)
        self.compute(name, sequence.num_tokens - 1)
        return True

    def release(self, name: int, *, store: bool = True) -> None:
        request = self.requests.pop(name)
        self.manager.release_blocks(self.sequences.pop(name), request if store else None)

    def ids(self, name: int) -> list[int]:
        return self.sequences[name].cache_block_ids[self.manager.window_size]

    def readable(self, name: int) -> list[tuple[int, ...] | None]:
        """Return what stands in a sequence's blocks; None for what slid out."""
        sequence = self.sequences[name]
        gone = sequence.num_front_blocks_removed[self.manager.window_size]
        rows: list[tuple[int, ...] | None] = [None] * (gone * SIZE)
        for number, block in enumerate(self.manager.blocks_of(sequence), gone):
            rows += self.contents.read(block, min(SIZE, sequence.num_tokens - number * SIZE))
        return rows

    def check(self) -> None:
        self.manager.check()
        for name, sequence in self.sequences.items():
            gone = SIZE * sequence.num_front_blocks_removed[self.manager.window_size]
            assert self.readable(name)[gone:] == prefixes(self.requests[name].tokens)[gone:]
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        for block in self.manager.cache.tree.walk():
            assert block.prev_block is not None
            path = paths[block.prev_block.block_id]
            tokens = paths[block.block_id] = path + block.key.tokens
            expected = prefixes(list(tokens))[len(path) :]
            assert self.contents.read(block, len(block.key.tokens)) == expected


def prefixes(tokens: list[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[: count + 1]) for count in range(len(tokens))]


def found(bench: Bench, tokens: list[int]) -> int:
    """Add a sequence; return how many of its tokens were cached."""
    return bench.requests[bench.add(tokens)].prepopulated_prompt_len


def test_nothing_is_stored_of_a_sequence_that_is_dropped() -> None:
    bench = Bench()
    bench.release(bench.add([1, 2, 3, 4, 5]), store=False)
    assert found(bench, [1, 2, 3, 4, 5]) == 0


def test_a_shared_block_is_copied_for_its_leading_tokens() -> None:
    bench = Bench()
    name = bench.add([1, 2, 3, 4, 5])
    bench.manager.store_context_blocks(bench.sequences[name], bench.requests[name])
    other = bench.add([1, 2, 3, 9, 9])
    assert bench.requests[other].prepopulated_prompt_len == 3
    assert bench.ids(other)[0] == bench.ids(name)[0]
    assert bench.ids(other)[1] != bench.ids(name)[1]
    assert bench.contents.num_partial_copies == 1
    bench.check()


def test_without_copying_a_block_in_use_is_not_reused_in_part() -> None:
    bench = Bench(copy_on_partial_reuse=False)
    name = bench.add([1, 2, 3, 4, 5])
    bench.manager.store_context_blocks(bench.sequences[name], bench.requests[name])
    assert found(bench, [1, 2, 3, 9, 9]) == 2


def test_without_partial_reuse_only_whole_blocks_are_found() -> None:
    bench = Bench(enable_partial_reuse=False)
    bench.release(bench.add([1, 2, 3, 4, 5]))
    assert found(bench, [1, 2, 3, 9, 9]) == 2


def test_what_a_tail_grew_to_takes_its_place() -> None:
    bench = Bench()
    bench.release(bench.add([1, 2, 3, 4]))
    bench.release(bench.add([1, 2, 3, 4, 5]))
    keys = [block.key.tokens for block in bench.manager.cache.tree.walk()]
    assert sorted(keys) == [(1, 2), (3, 4)]


def test_the_tail_is_evicted_before_the_head() -> None:
    bench = Bench(primary=4)
    bench.release(bench.add([1, 2, 3, 4, 5, 6, 7]))
    bench.release(bench.add([9, 9, 9]), store=False)
    assert found(bench, [1, 2, 3, 4, 5, 6, 7]) == 4


def test_nothing_moves_to_the_host_where_it_could_not_come_back() -> None:
    bench = Bench(primary=3, secondary=4, onboard_blocks=False)
    bench.release(bench.add([1, 2, 3, 4, 5]))
    bench.release(bench.add([6, 7, 8, 9, 10, 11]))
    assert bench.contents.num_offloaded == 0
    assert found(bench, [1, 2, 3, 4, 5]) == 0


def test_cheap_blocks_are_forgotten_and_not_moved() -> None:
    bench = Bench(primary=3, secondary=4, secondary_offload_min_priority=20)
    bench.release(bench.add([1, 2, 3, 4, 5], KvCacheRetentionConfig([Range(0, None, 10)])))
    bench.release(bench.add([6, 7, 8, 9, 10, 11]))
    assert bench.contents.num_offloaded == 0


def test_a_parent_of_lower_priority_takes_its_children_with_it() -> None:
    bench = Bench(primary=3)
    bench.release(
        bench.add([1, 2, 3, 4, 5], KvCacheRetentionConfig([Range(0, 2, 10), Range(2, 4, 90)]))
    )
    bench.add([8])
    bench.add([9])
    bench.check()
    assert not list(bench.manager.cache.tree.walk())


def test_two_that_compute_the_same_store_it_once() -> None:
    bench = Bench(primary=8)
    one, other = bench.add([1, 2, 3, 4, 5]), bench.add([1, 2, 3, 4, 6])
    bench.release(one)
    bench.release(other)
    assert len(list(bench.manager.cache.tree.walk())) == 2
    bench.check()


def test_what_leaves_the_window_is_free_at_once_and_stored_at_the_end() -> None:
    bench = Bench(window=4, primary=5, is_swa=True)
    name = bench.add([1, 2, 3, 4, 5])
    assert bench.manager.num_free_blocks == 2
    assert bench.grow(name, 6)
    assert bench.manager.num_free_blocks == 3
    assert bench.sequences[name].num_front_blocks_removed == {4: 1}
    bench.manager.store_context_blocks(bench.sequences[name], bench.requests[name])
    assert not list(bench.manager.cache.tree.walk())
    bench.release(name)
    assert found(bench, [1, 2, 3, 4, 5, 6]) == 5


@pytest.mark.parametrize("secondary", [0, 2])
def test_blocks_that_are_pinned_outlive_everything(secondary: int) -> None:
    bench = Bench(primary=4, secondary=secondary)
    name = bench.add([1, 2, 3, 4, 5])
    last = bench.manager.store_blocks_for_reuse(
        bench.sequences[name], bench.requests[name], pin_blocks=True
    )
    bench.release(name)
    for token in range(5):
        bench.release(bench.add([20 + token, 30]), store=False)
    bench.check()
    assert bench.manager.num_free_blocks == 2
    assert last is not None
    bench.manager.cache.unpin_blocks_by_id(last)
    bench.check()
    assert bench.manager.num_free_blocks == 4
    with pytest.raises(ValueError, match="is not pinned"):
        bench.manager.cache.unpin_blocks_by_id(last)


def test_what_is_to_be_copied_is_not_overwritten_first() -> None:
    bench = Bench(window=2, primary=4, secondary=3, is_swa=True)
    name = bench.add([2, 1, 1, 1, 1, 1, 1, 1])
    for _ in range(5):
        assert bench.grow(name, 1)
    bench.release(name)
    assert found(bench, [2, 1]) == 1
    bench.check()


class WindowMachine(RuleBasedStateMachine):
    """Few tokens, small pools and short texts, so that prefixes meet and everything is evicted."""

    @initialize(
        primary=st.integers(3, 7),
        secondary=st.integers(0, 3),
        window=st.sampled_from([2, 3, 4, 64]),
        partial=st.booleans(),
        copies=st.booleans(),
    )
    def begin(self, primary: int, secondary: int, window: int, partial: bool, copies: bool) -> None:
        self.bench = Bench(
            window, primary, secondary, is_swa=window < 64,
            enable_partial_reuse=partial, copy_on_partial_reuse=copies,
        )  # fmt: skip

    def one(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.bench.sequences)))

    @rule(
        tokens=texts(9),
        priority=st.sampled_from([None, None, 10, 80]),
        duration=st.sampled_from([None, 1000]),
    )
    def add(self, tokens: list[int], priority: int | None, duration: int | None) -> None:
        retention = None
        if priority is not None:
            retention = KvCacheRetentionConfig([Range(0, 4, priority, duration)], priority)
        try:
            self.bench.add(tokens, retention)
        except NoFreeBlocksError:
            assert -(-len(tokens) // SIZE) > self.bench.manager.num_free_blocks

    @precondition(lambda self: self.bench.sequences)
    @rule(data=st.data(), tokens=texts(6))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        name = self.one(data)
        for token in tokens:
            if not self.bench.grow(name, token):
                assert self.bench.manager.num_free_blocks == 0
                break

    @precondition(lambda self: self.bench.sequences)
    @rule(data=st.data(), store=st.sampled_from([True, True, False]))
    def release(self, data: st.DataObject, store: bool) -> None:
        self.bench.release(self.one(data), store=store)

    @precondition(lambda self: self.bench.sequences)
    @rule(data=st.data(), whole=st.booleans())
    def store(self, data: st.DataObject, whole: bool) -> None:
        name = self.one(data)
        sequence, request = self.bench.sequences[name], self.bench.requests[name]
        if whole:
            self.bench.manager.store_blocks_for_reuse(sequence, request)
        else:
            self.bench.manager.store_context_blocks(sequence, request)

    @rule(seconds=st.sampled_from([0.5, 1.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.bench.now += seconds
        self.bench.manager.cache.eviction_policy.refresh()

    @invariant()
    def all_is_right(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()


TestWindow = WindowMachine.TestCase
TestWindow.settings = LONG
