"""The manager with one group of full attention."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v1.cache.cache_machine import CacheMachine
from tests.lab.simworker.v1.small_cache import (
    admit,
    config,
    free_ids,
    full,
    manager,
    request,
    table,
)
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.caching_metrics import PrefixCacheStats
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockRemoved, BlockStored
from warmpath.lab.simworker.v1.hashing.block_hash import (
    get_block_hash,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
)
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheSpec


def test_no_request_gets_more_slots_than_the_longest_has() -> None:
    cache = manager(10, max_model_len=8)
    one = request("a", range(7))
    admit(cache, one)
    one.status = RequestStatus.RUNNING
    one.append_output_token_ids(7)
    blocks = cache.allocate_slots(one, 1, num_lookahead_tokens=20)
    assert blocks is not None
    assert table(cache, one) == ([1, 2],)
    one.num_computed_tokens = 8
    one.append_output_token_ids(8)
    assert cache.allocate_slots(one, 1) is not None
    assert table(cache, one) == ([1, 2],)


@pytest.mark.parametrize("status", [RequestStatus.WAITING, RequestStatus.RUNNING])
def test_a_delayed_step_caches_nothing(status: RequestStatus) -> None:
    cache = manager(10)
    one = request("a", range(7))
    admit(cache, one)
    one.status = status
    one.append_output_token_ids(7)
    cache.allocate_slots(one, 1, delay_cache_blocks=True)
    assert cache.block_pool.blocks[2].block_hash is None


def test_a_call_without_tokens_is_refused_and_changes_nothing() -> None:
    cache = manager(4)
    one = request("a", range(8))
    for status in (RequestStatus.WAITING, RequestStatus.RUNNING):
        one.status = status
        with pytest.raises(ValueError, match="num_new_tokens must be greater than 0"):
            cache.allocate_slots(one, 0)
        with pytest.raises(ValueError, match="num_new_tokens: -1, at least 0"):
            cache.allocate_slots(one, -1)
    assert free_ids(cache) == [1, 2, 3]


def test_a_running_request_cannot_be_given_found_blocks() -> None:
    cache = manager(10)
    one = request("a", range(8))
    admit(cache, one)
    cache.block_pool.touch(cache.block_pool.blocks[1:2])
    with pytest.raises(ValueError, match="new_computed_blocks: a is running already"):
        cache.allocate_slots(one, 4, 4, KVCacheBlocks((cache.block_pool.blocks[1:2],)))


def test_nothing_is_cached_where_caching_is_off() -> None:
    cache = manager(20, enable_caching=False, enable_kv_cache_events=True)
    one = request("a", range(9), block_hasher=None)
    assert admit(cache, one) == 0
    cache.cache_blocks(one, 9)
    one.status = RequestStatus.RUNNING
    one.append_output_token_ids([1, 2, 3])
    cache.allocate_slots(one, 3)
    cache.free(one)
    assert free_ids(cache) == [3, 2, 1, *range(4, 20)]
    assert admit(cache, request("b", range(9))) == 0
    assert cache.take_events() == []
    cache.check()


def test_forgotten_hashes_are_computed_anew_by_a_look_up() -> None:
    cache = manager(20)
    one = request("a", range(9))
    admit(cache, one)
    before = list(one.block_hashes)
    cache.free(one)
    cache.free_block_hashes(one)
    assert one.block_hashes == []
    assert cache.get_computed_blocks(one)[1] == 8
    assert one.block_hashes == before


def test_popped_blocks_stay_held_until_they_are_freed() -> None:
    cache = manager(10)
    one = request("a", range(9))
    admit(cache, one)
    blocks = cache.pop_blocks_for_free(one)
    assert [block.block_id for block in blocks] == [1, 2, 3]
    assert cache.get_block_ids("a") == ([],)
    assert cache.block_pool.get_num_free_blocks() == 6
    cache.block_pool.free_blocks(reversed(blocks))
    assert free_ids(cache) == [3, *range(4, 10), 2, 1]
    assert cache.pop_blocks_for_free(one) == []


def test_empty_results_are_one_object() -> None:
    cache = manager(10)
    empty = cache.get_blocks("nobody")
    assert empty is cache.empty_kv_cache_blocks
    assert cache.create_kv_cache_blocks(([],)) is empty
    assert cache.usage == 0.0


def test_stats_add_hits_by_where_they_came_from() -> None:
    stats = PrefixCacheStats()
    stats.record(9, 8, False, {"gpu": 4, "cpu": 4})
    stats.record(9, 4, False, {"cpu": 4})
    assert (stats.requests, stats.queries, stats.hits) == (2, 18, 12)
    assert stats.hits_by_source == {"gpu": 4, "cpu": 8}


def test_there_are_no_stats_where_they_are_not_kept() -> None:
    cache = manager(20)
    cache.record_prefix_cache_stats(request("a", range(9)), 0)
    cache.reset_prefix_cache()
    assert cache.make_prefix_cache_stats() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 0}, "max_model_len: 0, at least 1"),
        ({"scheduler_block_size": 0}, "scheduler_block_size: 0, at least 1"),
        ({"hash_block_size": 0}, "hash_block_size: 0, at least 1"),
        ({"max_in_flight_tokens": 0}, "max_in_flight_tokens: 0, at least 1"),
        ({"watermark": -0.1}, "watermark: -0.1, at least 0"),
        ({"dcp_world_size": 2}, "dcp_world_size"),
        ({"pcp_world_size": 2}, "pcp_world_size"),
        ({"scheduler_block_size": 6}, "scheduler_block_size: 6 is not a multiple"),
        ({"hash_block_size": 2}, "hash_block_size: 2, with one group its block_size 4"),
        ({"use_eagle": True, "num_prefill_lookahead": 5}, "num_prefill_lookahead: 5"),
        ({"retention": 8}, "must be 0 without layers with sliding windows"),
        ({"retention": 3}, "non-negative and a multiple of scheduler_block_size 4"),
        ({"retention": -4}, "non-negative"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        manager(10, **options)


def test_encoder_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="num_encoder_tokens"):
        manager(10).allocate_slots(request("a", range(4)), 4, num_encoder_tokens=1)


def test_other_kinds_of_layers_are_refused() -> None:
    class MambaSpec(KVCacheSpec):
        pass

    wrong = config(10, full())
    wrong.kv_cache_groups[0].kv_cache_spec = MambaSpec(4)
    manager_of = pytest.raises(
        ValueError, match=r"kv_cache_groups\[0\]: MambaSpec is not simulated"
    )
    with manager_of:
        type(manager(10))(wrong, 100)


@pytest.mark.parametrize("what", ["table", "cached"])
def test_a_manager_that_contradicts_itself_is_found_out(what: str) -> None:
    cache = manager(10)
    admit(cache, request("a", range(9)))
    group = cache.coordinator.single_type_managers[0]
    if what == "table":
        group.req_to_blocks["b"] = group.req_to_blocks["a"][:1]
    else:
        group.num_cached_block["b"] = 1
    with pytest.raises(BrokenInvariantError):
        cache.check()


class AnyHistory(CacheMachine):
    """Requests come, grow, are preempted, found again and go, over a pool that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = manager(9, max_model_len=40, enable_kv_cache_events=True)
        self.announced: Counter[object] = Counter()

    def longest_hit(self, one: Request) -> int:
        """Look for a request's blocks one by one, in all blocks."""
        held = {
            get_block_hash(block.block_hash)
            for block in self.cache.block_pool.blocks
            if block.block_hash is not None
        }
        hits = 0
        while hits < (one.num_tokens - 1) // 4 and one.block_hashes[hits] in held:
            hits += 1
        return hits * 4

    def start(self, one: Request, chunk: int, **options: Any) -> None:
        found, cached, boundary = self.cache.get_computed_blocks(one)
        assert (cached, boundary) == (self.longest_hit(one), 0)
        new = min(one.num_tokens - cached, chunk)
        free = free_ids(self.cache)
        if self.cache.allocate_slots(one, new, cached, found, **options) is None:
            assert free_ids(self.cache) == free
            self.waiting.append(one)
            return
        one.num_computed_tokens = cached + new
        one.status = RequestStatus.RUNNING
        self.running.append(one)

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        chunk=st.integers(1, 20),
        lookahead=st.integers(0, 3),
        whole=st.booleans(),
    )
    def come(self, tokens: list[int], chunk: int, lookahead: int, *, whole: bool) -> None:
        self.number += 1
        one = request(str(self.number), tokens)
        self.start(one, chunk, num_lookahead_tokens=lookahead, full_sequence_must_fit=whole)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), count=st.integers(1, 5), drafts=st.integers(0, 3))
    def step(self, which: int, count: int, drafts: int) -> None:
        one = self.running[which % len(self.running)]
        left = one.num_tokens - one.num_computed_tokens
        if not left:
            count = min(count, 40 - one.num_tokens)
            if not count:
                return
            one.append_output_token_ids([count % 2] * count)
            left = count
        new = min(left, count)
        if self.cache.allocate_slots(one, new + drafts * (new == left)) is None:
            self.preempt(which)
            return
        one.num_computed_tokens += new

    @invariant()
    def nothing_is_leaked(self) -> None:
        self.cache.check()
        held = {block for one in self.running for block in table(self.cache, one)[0]}
        assert sorted([*held, *free_ids(self.cache)]) == list(range(1, 9))

    @invariant()
    def each_has_room_for_its_tokens_and_its_own_content(self) -> None:
        for one in self.running:
            blocks = self.cache.get_blocks(one.request_id).blocks[0]
            assert len(blocks) * 4 >= one.num_computed_tokens
            for block, digest in zip(blocks, one.block_hashes, strict=False):
                assert block.block_hash in {None, make_block_hash_with_group_id(digest, 0)}

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        for event in self.cache.take_events():
            if isinstance(event, BlockStored):
                self.announced.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.announced.subtract(event.block_hashes)
            else:
                self.announced.clear()
        assert +self.announced == Counter(
            maybe_convert_block_hash(get_block_hash(block.block_hash))
            for block in self.cache.block_pool.blocks
            if block.block_hash is not None
        )


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = LONG
