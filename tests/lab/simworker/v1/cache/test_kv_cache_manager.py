"""The manager and its groups, of one kind or several: a prefix is of use where every group has it."""

from typing import Any

import pytest

from tests.lab.simworker.v1.small_cache import (
    admit,
    config,
    free_ids,
    full,
    manager,
    request,
    table,
    window,
)
from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.coordinator import UnitaryKVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlocks
from warmpath.lab.simworker.v1.cache.single_type_manager import FullAttentionManager
from warmpath.lab.simworker.v1.cache.sliding_window import SlidingWindowManager
from warmpath.lab.simworker.v1.requests.request import RequestStatus
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 0}, "max_model_len: 0, at least 1"),
        ({"scheduler_block_size": 0}, "scheduler_block_size: 0, at least 1"),
        ({"hash_block_size": 0}, "hash_block_size: 0, at least 1"),
        ({"max_in_flight_tokens": 0}, "max_in_flight_tokens: 0, at least 1"),
        ({"watermark": -0.1}, "watermark: -0.1, at least 0"),
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


def test_the_kind_of_coordinator_follows_from_the_groups() -> None:
    assert isinstance(manager(9).coordinator, UnitaryKVCacheCoordinator)
    assert isinstance(manager(9, window(4)).coordinator, UnitaryKVCacheCoordinator)
    without = manager(9, full(), full(), enable_caching=False).coordinator
    assert without.find_longest_cache_hit([b"a"], 9) == (([], []), 0, 0)


def test_hashes_that_divide_no_block_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"hash_block_size: 8 does not divide kv_cache_groups\[1\]'s 4"
    ):
        manager(20, full(8), window(8, 4), hash_block_size=8)


def group(tokens: int, size: int = 2, cap: int | None = None) -> SlidingWindowManager:
    pool = BlockPool(100, True, size)
    return SlidingWindowManager(
        window(tokens, size), pool, True, 0, size, max_admission_blocks_per_request=cap
    )


def test_external_tokens_before_the_window_take_no_blocks() -> None:
    one = group(4)
    one.add_local_computed_blocks("a", [], 0, 10)
    one.allocate_external_computed_blocks("a", 0, 10)
    assert [block.block_id for block in one.req_to_blocks["a"]] == [0, 0, 0, 1, 2]
    tiny = group(1)
    tiny.add_local_computed_blocks("a", [], 0, 4)
    tiny.allocate_external_computed_blocks("a", 0, 4)
    assert tiny.req_to_blocks["a"] == [tiny.block_pool.null_block] * 2


def test_an_alignment_that_is_none_of_the_blocks_leaves_nothing_out() -> None:
    spec = window(16, 16)
    for alignment in (None, 8, 24):
        assert SlidingWindowManager.reachable_block_mask(0, 4, alignment, spec, False) is None


def test_a_manager_of_another_kind_of_group_is_refused() -> None:
    pool = BlockPool(4, True, 4)
    with pytest.raises(TypeError, match="FullAttentionSpec is not a sliding window"):
        SlidingWindowManager.find_longest_cache_hit([], 4, [0], pool, full(), False, 4)
    with pytest.raises(TypeError, match="SlidingWindowSpec is not full attention"):
        FullAttentionManager.find_longest_cache_hit([], 4, [0], pool, window(4), False, 4)
    with pytest.raises(ValueError, match="alignment_tokens: 2 is not a multiple of 4"):
        FullAttentionManager.find_longest_cache_hit([], 4, [0], pool, full(), False, 2)
