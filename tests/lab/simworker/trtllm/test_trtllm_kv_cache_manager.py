"""The manager and its windows: each block and sequence reads back what it should, and events tell all.

One file, since all tests use the benches of one manager.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.trtllm.benches import FULL, Bench, EventFollower, texts, truth
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import NoFreeBlocksError
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.blocks.retention import TokenRangeRetentionConfig as Range
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import (
    KVCacheStoredData,
    KVCacheUpdatedData,
    serialise,
)
from warmpath.lab.simworker.trtllm.requests.llm_request import LlmRequest


def of_two(primary: int = 6, secondary: int = 0, *, window: int = FULL, **options: Any) -> Bench:
    """Return a bench of one window whose blocks hold two tokens."""
    return Bench({window: (primary, secondary)}, 2, **options)


def test_a_life_of_a_request_is_told_as_it_happens() -> None:
    bench = Bench()
    assert bench.kinds() == ["created"]
    request = bench.add(list(range(10)), lora_task_id=42)
    assert bench.kinds() == []
    bench.manager.store_context_blocks(request)
    [event] = bench.events()
    assert isinstance(event.data, KVCacheStoredData)
    assert event.data.parent_hash is None
    assert [block.tokens for block in event.data.blocks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {block.lora_id for block in event.data.blocks} == {42}
    bench.grow(request, 0)
    bench.release(request)
    [last] = bench.events()
    assert isinstance(last.data, KVCacheStoredData)
    assert last.event_id == event.event_id + 1
    assert last.data.parent_hash == event.data.blocks[-1].block_hash
    assert [block.tokens for block in last.data.blocks] == [(8, 9)]
    again = bench.add(list(range(9)), lora_task_id=42)
    assert again.prepopulated_prompt_len == 8
    bench.manager.store_context_blocks(again)
    bench.release(again)
    assert bench.kinds() == []


def test_a_priority_that_a_request_changes_is_told() -> None:
    bench = Bench()
    bench.release(bench.add(list(range(9))))
    bench.events()
    bench.add(list(range(9)), retention=KvCacheRetentionConfig([Range(0, 4, 80)]))
    [event] = bench.events()
    assert isinstance(event.data, KVCacheUpdatedData)
    assert event.data.cache_level is None
    assert event.data.priority is not None
    assert (event.data.priority.old_value, event.data.priority.new_value) == (35, 80)


def test_blocks_that_decoding_fills_have_the_priority_asked_for_them() -> None:
    bench = Bench({FULL: (8, 0)})
    request = bench.add(list(range(4)), retention=KvCacheRetentionConfig([], 70))
    bench.grow(request, *range(5))
    blocks = bench.contents[FULL].blocks
    assert [blocks[one].priority for one in bench.ids(request, FULL)] == [35, 70, 70]


def test_adapters_and_salts_keep_texts_apart() -> None:
    variants: list[dict[str, int]] = [{}, {"lora_task_id": 1}, {"cache_salt_id": 1}]
    bench = Bench({FULL: (40, 0)})
    for fields in variants:
        request = bench.add(list(range(9)), **fields)
        assert request.prepopulated_prompt_len == 0
        bench.release(request)
    for fields in variants:
        assert bench.add(list(range(9)), **fields).prepopulated_prompt_len == 8
    assert len(truth(bench.manager)[FULL]) == 2 * len(variants)


def test_without_reuse_nothing_is_kept() -> None:
    bench = Bench(enable_block_reuse=False)
    bench.manager.add_sequence(99, 9)
    bench.manager.add_token(99)
    assert bench.manager.get_num_free_blocks() == 5
    bench.manager.remove_sequence(99)
    assert bench.manager.get_num_free_blocks() == 8
    request = bench.add(list(range(9)))
    bench.manager.store_context_blocks(request)
    bench.release(request)
    assert truth(bench.manager) == {FULL: {}}


def test_several_windows_hold_the_same_text_by_the_same_hashes() -> None:
    bench = Bench({8: (16, 4), FULL: (16, 4)})
    assert bench.kinds() == ["created", "created"]
    request = bench.add(list(range(8)))
    bench.grow(request, *range(8, 12))
    bench.manager.store_context_blocks(request)
    assert len(truth(bench.manager)[FULL]) == 2
    assert truth(bench.manager)[8] == {}
    bench.release(request)
    assert truth(bench.manager)[8] == truth(bench.manager)[FULL]
    again = bench.add(list(range(7)))
    assert again.prepopulated_prompt_len == 6
    assert bench.ids(again, 8) == bench.ids(again, FULL) == [0, 3]


def test_what_is_found_is_what_all_windows_have() -> None:
    bench = Bench({8: (3, 0), FULL: (16, 0)})
    bench.release(bench.add(list(range(12))))
    bench.release(bench.add([99] * 5))
    assert bench.found(list(range(12))) == 4


def test_a_window_without_room_stops_all_of_them() -> None:
    bench = Bench({8: (2, 0), FULL: (16, 0)})
    with pytest.raises(NoFreeBlocksError, match="window 8: 3 blocks needed, 2 are free"):
        bench.add(list(range(9)))
    bench.check()
    assert bench.manager.get_num_free_blocks() == 18
    request = bench.add(list(range(8)))
    with pytest.raises(NoFreeBlocksError, match="window 8: no block"):
        bench.grow(request, 1)
    assert bench.manager.get_sequence(request.request_id).num_tokens == 8


def test_the_first_new_block_of_a_prompt_is_found() -> None:
    bench = Bench()
    request = bench.add(list(range(10)))
    bench.manager.store_context_blocks(request)
    key = bench.manager.find_new_context_block(LlmRequest(1, [*range(8), 7, 7, 7, 7, 7]))
    assert key is not None
    assert key.tokens == (*range(8), 7, 7, 7, 7)
    assert bench.manager.find_new_context_block(LlmRequest(1, list(range(9)))) is None
    with pytest.raises(ValueError, match="a single window only"):
        Bench({8: (4, 0), 9: (4, 0)}).manager.find_new_context_block(request)


def test_nothing_is_stored_of_a_sequence_that_is_dropped() -> None:
    bench = of_two()
    bench.release(bench.add([1, 2, 3, 4, 5]), store=False)
    assert bench.found([1, 2, 3, 4, 5]) == 0


def test_a_shared_block_is_copied_for_its_leading_tokens() -> None:
    bench = of_two()
    one = bench.add([1, 2, 3, 4, 5])
    bench.manager.store_context_blocks(one)
    other = bench.add([1, 2, 3, 9, 9])
    assert other.prepopulated_prompt_len == 3
    assert bench.ids(other, FULL)[0] == bench.ids(one, FULL)[0]
    assert bench.ids(other, FULL)[1] != bench.ids(one, FULL)[1]
    assert bench.contents[FULL].num_partial_copies == 1
    bench.check()


def test_without_copying_a_block_in_use_is_not_reused_in_part() -> None:
    bench = of_two(copy_on_partial_reuse=False)
    bench.manager.store_context_blocks(bench.add([1, 2, 3, 4, 5]))
    assert bench.found([1, 2, 3, 9, 9]) == 2


def test_without_partial_reuse_only_whole_blocks_are_found() -> None:
    bench = of_two(enable_partial_reuse=False)
    bench.release(bench.add([1, 2, 3, 4, 5]))
    assert bench.found([1, 2, 3, 9, 9]) == 2


def test_what_a_tail_grew_to_takes_its_place() -> None:
    bench = of_two()
    bench.release(bench.add([1, 2, 3, 4]))
    bench.release(bench.add([1, 2, 3, 4, 5]))
    assert sorted(block.key.tokens for block in bench.cached()) == [(1, 2), (3, 4)]


def test_the_tail_is_evicted_before_the_head() -> None:
    bench = of_two(4)
    bench.release(bench.add([1, 2, 3, 4, 5, 6, 7]))
    bench.release(bench.add([9, 9, 9]), store=False)
    assert bench.found([1, 2, 3, 4, 5, 6, 7]) == 4


def test_nothing_moves_to_the_host_where_it_could_not_come_back() -> None:
    bench = of_two(3, 4, onboard_blocks=False)
    bench.release(bench.add([1, 2, 3, 4, 5]))
    bench.release(bench.add([6, 7, 8, 9, 10, 11]))
    assert bench.contents[FULL].num_offloaded == 0
    assert bench.found([1, 2, 3, 4, 5]) == 0


def test_cheap_blocks_are_forgotten_and_not_moved() -> None:
    bench = of_two(3, 4, secondary_offload_min_priority=20)
    cheap = KvCacheRetentionConfig([Range(0, None, 10)])
    bench.release(bench.add([1, 2, 3, 4, 5], retention=cheap))
    bench.release(bench.add([6, 7, 8, 9, 10, 11]))
    assert bench.contents[FULL].num_offloaded == 0


def test_what_leaves_the_window_is_free_at_once_and_stored_at_the_end() -> None:
    bench = of_two(5, window=4)
    request = bench.add([1, 2, 3, 4, 5])
    assert bench.manager.get_num_free_blocks() == 2
    bench.grow(request, 6)
    assert bench.manager.get_num_free_blocks() == 3
    sequence = bench.manager.get_sequence(request.request_id)
    assert sequence.num_front_blocks_removed == {4: 1}
    bench.manager.store_context_blocks(request)
    assert not bench.cached(4)
    bench.release(request)
    assert bench.found([1, 2, 3, 4, 5, 6]) == 5


@pytest.mark.parametrize(
    ("windows", "size", "message"),
    [
        ({}, 4, "at least one window"),
        ({0: (4, 0)}, 4, "a window of 0 tokens"),
        ({8: (0, 0)}, 4, "num_primary is 0"),
        ({8: (4, -1)}, 4, "num_secondary is -1"),
        ({8: (4, 0)}, 0, "tokens_per_block is 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(
    windows: dict[int, tuple[int, int]], size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KVCacheManager(windows, CacheOptions(size), max_sequence_length=FULL)


def test_calls_that_make_no_sense_are_refused() -> None:
    manager = Bench().manager
    request = LlmRequest(0, [1, 2, 3])
    for length, message in (
        (0, "it must be 1 to 64"),
        (65, "it must be 1 to 64"),
        (4, "has 3 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            manager.add_sequence(0, length, request)
    with pytest.raises(ValueError, match="is needed where blocks are reused"):
        manager.add_sequence(0, 3)
    manager.add_sequence(0, 3, request)
    with pytest.raises(ValueError, match="has a sequence already"):
        manager.add_sequence(0, 3, request)
    with pytest.raises(ValueError, match="request_id 7 has no sequence"):
        manager.add_token(7)
    for _ in range(5):
        request.add_new_token(1)
    with pytest.raises(ValueError, match="2 keys, but 1 blocks"):
        manager.remove_sequence(0, request)


class Manager(RuleBasedStateMachine):
    """Few tokens, small pools and short texts, so that prefixes meet and everything is evicted.

    A follower that sees only JSON knows all that is cached, and where.
    """

    @initialize(
        windows=st.sampled_from([{FULL: 4}, {FULL: 7}, {4: 6}, {4: 6, FULL: 8}, {3: 5, FULL: 6}, {2: 5}]),
        secondary=st.integers(0, 3),
        announces=st.booleans(),
        partial=st.booleans(),
        copies=st.booleans(),
    )  # fmt: skip
    def begin(
        self, windows: dict[int, int], secondary: int, announces: bool, partial: bool, copies: bool
    ) -> None:
        self.bench = Bench(
            {window: (primary, secondary) for window, primary in windows.items()}, 2,
            announces_detached=announces, enable_partial_reuse=partial, copy_on_partial_reuse=copies,
        )  # fmt: skip
        self.exact = announces
        self.follower = EventFollower()

    def one(self, data: st.DataObject) -> LlmRequest:
        return self.bench.requests[data.draw(st.sampled_from(sorted(self.bench.requests)))]

    @rule(
        tokens=texts(9),
        priority=st.sampled_from([None, None, 10, 80]),
        duration=st.sampled_from([None, 1000]),
        salt=st.sampled_from([None, None, 1]),
    )
    def add(
        self, tokens: list[int], priority: int | None, duration: int | None, salt: int | None
    ) -> None:
        retention = None
        if priority is not None:
            ranges = [Range(0, 4, priority, duration)]
            retention = KvCacheRetentionConfig(ranges, priority, duration)
        try:
            self.bench.add(tokens, retention=retention, cache_salt_id=salt)
        except NoFreeBlocksError:
            free = self.bench.manager.num_free_blocks_per_window.values()
            assert -(-len(tokens) // 2) > min(free)

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data(), tokens=texts(6))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        try:
            self.bench.grow(self.one(data), *tokens)
        except NoFreeBlocksError:
            assert 0 in self.bench.manager.num_free_blocks_per_window.values()

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data(), store=st.sampled_from([True, True, False]))
    def release(self, data: st.DataObject, store: bool) -> None:
        self.bench.release(self.one(data), store=store)

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        self.bench.manager.store_context_blocks(self.one(data))

    @rule()
    def reset(self) -> None:
        done = self.bench.manager.reset_reuse_state()
        assert done or self.bench.requests
        assert not done or not any(truth(self.bench.manager).values())

    @rule(seconds=st.sampled_from([0.5, 1.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.bench.now += seconds
        self.bench.manager.refresh_blocks()

    @invariant()
    def contents_are_right_and_events_tell_the_truth(self) -> None:
        self.bench.check()
        self.follower.follow(serialise(event) for event in self.bench.events())
        true = truth(self.bench.manager)
        if self.exact:
            assert self.follower.windows == true
        else:
            # What was taken over in silence is believed in; about all else they agree.
            for window, blocks in true.items():
                assert self.follower.windows[window].items() >= blocks.items()


TestManager = long_test(Manager)
