"""The whole manager: its interface, and that its events are complete."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.trtllm.event_follower import EventFollower, truth
from tests.lab.simworker.trtllm.token_texts import texts
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import NoFreeBlocksError
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.blocks.retention import TokenRangeRetentionConfig as Range
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import (
    KVCacheStoredData,
    KVCacheUpdatedData,
    serialise,
)
from warmpath.lab.simworker.trtllm.requests.llm_request import LlmRequest, MultimodalItem

FULL = 64


def new_manager(
    windows: dict[int, tuple[int, int]] | None = None,
    size: int = 4,
    *,
    enable_block_reuse: bool = True,
    **options: Any,
) -> KVCacheManager:
    return KVCacheManager(
        windows or {FULL: (8, 2)},
        CacheOptions(size, event_manager=KVCacheEventManager(1000), **options),
        max_sequence_length=FULL,
        enable_block_reuse=enable_block_reuse,
    )


def add(
    manager: KVCacheManager, request_id: int, tokens: list[int], **fields: object
) -> LlmRequest:
    request = LlmRequest(request_id, list(tokens), **fields)  # type: ignore[arg-type]
    manager.add_sequence(request_id, len(tokens), request)
    return request


def grow(manager: KVCacheManager, request: LlmRequest, token: int) -> None:
    manager.add_token(request.request_id)
    request.add_new_token(token)


def kinds(manager: KVCacheManager) -> list[str]:
    manager.flush_iteration_events()
    return [serialise(event)["data"]["type"] for event in manager.get_latest_events()]


def test_a_life_of_a_request_is_told_as_it_happens() -> None:
    manager = new_manager()
    assert kinds(manager) == ["created"]
    request = add(manager, 0, list(range(10)), lora_task_id=42)
    assert kinds(manager) == []
    manager.store_context_blocks(request)
    manager.flush_iteration_events()
    [event] = manager.get_latest_events()
    assert isinstance(event.data, KVCacheStoredData)
    assert event.data.parent_hash is None
    assert [block.tokens for block in event.data.blocks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {block.lora_id for block in event.data.blocks} == {42}
    grow(manager, request, 0)
    manager.remove_sequence(0, request)
    manager.flush_iteration_events()
    [last] = manager.get_latest_events()
    assert isinstance(last.data, KVCacheStoredData)
    assert last.event_id == event.event_id + 1
    assert last.data.parent_hash == event.data.blocks[-1].block_hash
    assert [block.tokens for block in last.data.blocks] == [(8, 9)]
    again = add(manager, 1, list(range(9)), lora_task_id=42)
    manager.store_context_blocks(again)
    manager.remove_sequence(1, again)
    assert kinds(manager) == []


def test_a_priority_that_a_request_changes_is_told() -> None:
    manager = new_manager()
    manager.remove_sequence(0, add(manager, 0, list(range(9))))
    kinds(manager)
    add(manager, 1, list(range(9)), retention=KvCacheRetentionConfig([Range(0, 4, 80)]))
    manager.flush_iteration_events()
    [event] = manager.get_latest_events()
    assert isinstance(event.data, KVCacheUpdatedData)
    assert event.data.cache_level is None
    assert event.data.priority is not None
    assert (event.data.priority.old_value, event.data.priority.new_value) == (35, 80)


def test_requests_are_told_what_was_found_for_them() -> None:
    manager = new_manager({FULL: (16, 0)})
    request = add(manager, 0, list(range(9)))
    assert (request.alloc_total_blocks, request.alloc_new_blocks) == (3, 3)
    assert (request.reused_blocks, request.missed_blocks) == (0, 3)
    manager.remove_sequence(0, request)
    again = add(manager, 1, list(range(9)))
    assert again.prepopulated_prompt_len == 8
    assert (again.alloc_total_blocks, again.alloc_new_blocks) == (1, 1)
    assert (again.reused_blocks, again.missed_blocks) == (2, 1)


def test_blocks_that_decoding_fills_have_the_priority_asked_for_them() -> None:
    manager = new_manager({FULL: (8, 0)})
    request = add(manager, 0, list(range(4)), retention=KvCacheRetentionConfig([], 70))
    for token in range(5):
        grow(manager, request, token)
    first, second, third = manager.get_cache_block_ids(0, FULL)
    [window] = manager.windows.values()
    assert window.get_block_by_id(first).priority == 35
    assert {window.get_block_by_id(one).priority for one in (second, third)} == {70}


def test_adapters_salts_and_images_keep_texts_apart() -> None:
    tokens = list(range(9))
    image = [MultimodalItem(bytes(32), 1, 6)]
    variants: list[dict[str, object]] = [
        {}, {"lora_task_id": 1}, {"cache_salt_id": 1}, {"multimodal_items": image},
        {"token_extra_ids": [1] * 9},
    ]  # fmt: skip
    manager = new_manager({FULL: (40, 0)})
    for number, fields in enumerate(variants):
        request = add(manager, number, tokens, **fields)
        assert request.prepopulated_prompt_len == 0
        manager.remove_sequence(number, request)
    for number, fields in enumerate(variants, 10):
        assert add(manager, number, tokens, **fields).prepopulated_prompt_len == 8
    hashes = truth(manager)[FULL]
    assert len(hashes) == 2 * len(variants)


def test_an_image_names_the_part_that_a_block_holds() -> None:
    request = LlmRequest(0, list(range(12)), multimodal_items=[MultimodalItem(bytes(32), 2, 7)])
    keys = request.block_keys(12, 4, allow_partial=False)
    assert [[offset for _, offset in key.extra_keys] for key in keys] == [[0], [2], [6]]


def test_without_reuse_nothing_is_kept() -> None:
    manager = new_manager(enable_block_reuse=False)
    manager.add_sequence(0, 9)
    manager.add_token(0)
    assert manager.get_num_free_blocks() == 5
    manager.remove_sequence(0)
    assert manager.get_num_free_blocks() == 8
    request = add(manager, 1, list(range(9)))
    manager.store_context_blocks(request)
    manager.store_new_block(request)
    assert manager.store_blocks_for_reuse(request) == {FULL: None}
    manager.remove_sequence(1, request)
    assert truth(manager) == {FULL: {}}


def test_what_is_rewound_gives_its_blocks_back() -> None:
    manager = new_manager()
    request = add(manager, 0, list(range(5)))
    for token in range(6):
        grow(manager, request, token)
    assert manager.get_num_free_blocks() == 5
    last = manager.get_cache_block_ids(0, FULL)[-1]
    manager.rewind_kv_cache(0, 4)
    request.remove_tokens(4)
    manager.check()
    assert manager.get_num_free_blocks() == 6
    [window] = manager.windows.values()
    assert window.cache.eviction_policy.get_free_block(0)[0].block_id == last
    manager.remove_sequence(0, request)
    assert sum(len(known.tokens) for known in truth(manager)[FULL].values()) == 6


def test_what_is_cached_cannot_be_rewound() -> None:
    manager = new_manager()
    request = add(manager, 0, list(range(9)))
    manager.store_context_blocks(request)
    manager.rewind_kv_cache(0, 1)
    with pytest.raises(ValueError, match="token 7 stays in window 64"):
        manager.rewind_kv_cache(0, 1)
    assert manager.get_sequence(0).num_tokens == 8


def test_a_tail_rewound_into_a_cached_block_is_not_stored_again() -> None:
    manager = new_manager()
    manager.remove_sequence(0, add(manager, 0, list(range(10))))
    before = truth(manager)
    request = add(manager, 1, list(range(5)))
    manager.rewind_kv_cache(1, 1)
    request.remove_tokens(1)
    manager.remove_sequence(1, request)
    manager.check()
    assert truth(manager) == before


def test_a_window_that_has_slid_cannot_be_rewound_past_that() -> None:
    manager = new_manager({8: (8, 0)})
    request = add(manager, 0, list(range(8)))
    for token in range(8, 13):
        grow(manager, request, token)
    manager.rewind_kv_cache(0, 1)
    with pytest.raises(ValueError, match="token 11 stays in window 8"):
        manager.rewind_kv_cache(0, 1)
    manager.check()


def test_a_full_block_can_be_stored_as_soon_as_it_is() -> None:
    manager = new_manager()
    request = add(manager, 0, list(range(6)))
    kinds(manager)
    told = []
    for token in range(4):
        grow(manager, request, token)
        manager.store_new_block(request)
        told.append(kinds(manager))
    assert told == [[], [], ["stored"], []]
    assert len(truth(manager)[FULL]) == 2


def test_several_windows_hold_the_same_text_by_the_same_hashes() -> None:
    manager = new_manager({8: (16, 4), FULL: (16, 4)})
    assert kinds(manager) == ["created", "created"]
    request = add(manager, 0, list(range(8)))
    for token in range(8, 12):
        grow(manager, request, token)
    manager.store_context_blocks(request)
    assert len(truth(manager)[FULL]) == 2
    assert truth(manager)[8] == {}
    manager.remove_sequence(0, request)
    assert truth(manager)[8] == truth(manager)[FULL]
    again = add(manager, 1, list(range(7)))
    assert again.prepopulated_prompt_len == 6
    assert manager.get_cache_block_ids(1, 8) == manager.get_cache_block_ids(1, FULL) == [0, 3]


def test_what_is_found_is_what_all_windows_have() -> None:
    manager = new_manager({8: (3, 0), FULL: (16, 0)})
    manager.remove_sequence(0, add(manager, 0, list(range(12))))
    manager.remove_sequence(1, add(manager, 1, [99] * 5))
    assert add(manager, 2, list(range(12))).prepopulated_prompt_len == 4


def test_a_window_without_room_stops_all_of_them() -> None:
    manager = new_manager({8: (2, 0), FULL: (16, 0)})
    with pytest.raises(NoFreeBlocksError, match="window 8: 3 blocks needed, 2 are free"):
        add(manager, 0, list(range(9)))
    manager.check()
    assert manager.get_num_free_blocks() == 18
    request = add(manager, 1, list(range(8)))
    with pytest.raises(NoFreeBlocksError, match="window 8: no block"):
        grow(manager, request, 1)
    assert manager.get_sequence(1).num_tokens == 8


def test_the_first_new_block_of_a_prompt_is_found() -> None:
    manager = new_manager()
    request = add(manager, 0, list(range(10)))
    manager.store_context_blocks(request)
    key = manager.find_new_context_block(LlmRequest(1, [*range(8), 7, 7, 7, 7, 7]))
    assert key is not None
    assert key.tokens == (*range(8), 7, 7, 7, 7)
    assert manager.find_new_context_block(LlmRequest(1, list(range(9)))) is None
    with pytest.raises(ValueError, match="a single window only"):
        new_manager({8: (4, 0), 9: (4, 0)}).find_new_context_block(request)


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
    manager = new_manager()
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
    with pytest.raises(ValueError, match="only token"):
        manager.rewind_kv_cache(0, 3)
    for _ in range(5):
        request.add_new_token(1)
    with pytest.raises(ValueError, match="2 keys, but 1 blocks"):
        manager.remove_sequence(0, request)


class ManagerMachine(RuleBasedStateMachine):
    """One or two windows; a follower that sees only JSON knows all that is cached, and where."""

    @initialize(
        windows=st.sampled_from([{FULL: 7}, {4: 6}, {4: 6, FULL: 8}, {3: 5, FULL: 6}]),
        secondary=st.integers(0, 3),
        announces=st.booleans(),
        partial=st.booleans(),
    )
    def begin(
        self, windows: dict[int, int], secondary: int, announces: bool, partial: bool
    ) -> None:
        self.now = 0.0
        self.manager = new_manager(
            {window: (primary, secondary) for window, primary in windows.items()}, 2,
            announces_detached=announces, enable_partial_reuse=partial, clock=lambda: self.now,
        )  # fmt: skip
        self.exact = announces
        self.follower = EventFollower()
        self.requests: dict[int, LlmRequest] = {}
        self.pinned: list[tuple[int, int]] = []
        self.next_id = 0

    def one(self, data: st.DataObject) -> LlmRequest:
        return self.requests[data.draw(st.sampled_from(sorted(self.requests)))]

    @rule(
        tokens=texts(8),
        priority=st.sampled_from([None, 10, 80]),
        salt=st.sampled_from([None, None, 1]),
    )
    def add(self, tokens: list[int], priority: int | None, salt: int | None) -> None:
        retention = None
        if priority is not None:
            retention = KvCacheRetentionConfig([Range(0, 4, priority, 1000)], priority, 1000)
        try:
            request = add(
                self.manager, self.next_id, tokens, retention=retention, cache_salt_id=salt
            )
        except NoFreeBlocksError:
            return
        assert 0 <= request.prepopulated_prompt_len < len(tokens)
        self.requests[self.next_id] = request
        self.next_id += 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=texts(4))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        request = self.one(data)
        for token in tokens:
            try:
                grow(self.manager, request, token)
            except NoFreeBlocksError:
                assert 0 in self.manager.num_free_blocks_per_window.values()
                break

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 3))
    def rewind(self, data: st.DataObject, count: int) -> None:
        request = self.one(data)
        for _ in range(count):
            try:
                self.manager.rewind_kv_cache(request.request_id, 1)
            except ValueError:
                break
            request.remove_tokens(1)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), store=st.sampled_from([True, True, False]))
    def remove(self, data: st.DataObject, store: bool) -> None:
        request = self.one(data)
        del self.requests[request.request_id]
        self.manager.remove_sequence(request.request_id, request if store else None)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), how=st.sampled_from(["context", "new", "all", "pin"]))
    def store(self, data: st.DataObject, how: str) -> None:
        request = self.one(data)
        if how == "context":
            self.manager.store_context_blocks(request)
        elif how == "new":
            self.manager.store_new_block(request)
        elif how == "all" or len(self.pinned) < 2:
            last = self.manager.store_blocks_for_reuse(request, pin_blocks=how == "pin")
            if how == "pin":
                self.pinned += [(one, window) for window, one in last.items() if one is not None]

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.manager.unpin_blocks_by_id(*self.pinned.pop())

    @rule()
    def reset(self) -> None:
        done = self.manager.reset_reuse_state()
        assert done or self.requests or self.pinned
        assert not done or not any(truth(self.manager).values())

    @rule(seconds=st.sampled_from([0.5, 1.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.manager.refresh_blocks()

    @invariant()
    def events_tell_the_truth(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        self.manager.flush_iteration_events()
        self.follower.follow(serialise(event) for event in self.manager.get_latest_events())
        true = truth(self.manager)
        if self.exact:
            assert self.follower.windows == true
        else:
            # What was taken over in silence is believed in; about all else they agree.
            for window, blocks in true.items():
                assert self.follower.windows[window].items() >= blocks.items()


TestManager = ManagerMachine.TestCase
TestManager.settings = LONG
