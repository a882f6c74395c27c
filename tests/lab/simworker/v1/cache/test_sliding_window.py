"""Groups with a sliding window: what leaves it, and what a hit needs of it."""

import pytest

from tests.lab.simworker.v1.small_cache import (
    admit,
    free_ids,
    full,
    manager,
    request,
    table,
    window,
)
from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.full_attention import FullAttentionManager
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockStored
from warmpath.lab.simworker.v1.cache.sliding_window import SlidingWindowManager
from warmpath.lab.simworker.v1.hashing.block_hash import make_block_hash_with_group_id
from warmpath.lab.simworker.v1.requests.request import RequestStatus


def group(tokens: int, size: int = 2, cap: int | None = None) -> SlidingWindowManager:
    pool = BlockPool(100, True, size)
    return SlidingWindowManager(
        window(tokens, size), pool, True, 0, size, max_admission_blocks_per_request=cap
    )


def hit(
    one: SlidingWindowManager, cached: str, *, drop: bool = False, alignment: int | None = None
) -> list[int]:
    """Look a request up; its blocks marked "x" are cached, block i as block i + 10."""
    hashes = [str(at).encode() for at in range(len(cached))]
    for at, mark in enumerate(cached):
        if mark == "x":
            key = make_block_hash_with_group_id(hashes[at], 0)
            one.block_pool.cached_block_hash_to_block.insert(key, one.block_pool.blocks[at + 10])
    size = one.block_size
    (blocks,), length = one.find_longest_cache_hit(
        block_hashes=hashes,
        max_length=len(cached) * size + size - 1,
        kv_cache_group_ids=[0],
        block_pool=one.block_pool,
        kv_cache_spec=one.kv_cache_spec,
        drop_eagle_block=drop,
        alignment_tokens=alignment or size,
    )
    assert length == len(blocks) * size
    return [block.block_id for block in blocks]


@pytest.mark.parametrize(
    ("cached", "blocks"),
    [
        ("....", []),
        ("x", [10]),
        ("x.", [10]),
        ("xx.", [10, 11]),
        ("xxx", [0, 11, 12]),
        (".xx.", [0, 11, 12]),
        (".x.x", []),
        ("x.xx.x", [0, 0, 12, 13]),
        ("xx.x", [10, 11]),
        ("xx.x..xx.xxx", [0] * 10 + [20, 21]),
    ],
)
def test_a_hit_is_a_window_of_blocks_or_the_beginning(cached: str, blocks: list[int]) -> None:
    """A window of 4 tokens: the 3 before the next lie in two blocks of 2."""
    assert hit(group(4), cached) == blocks


def test_a_window_of_one_token_needs_no_block_but_ends_with_one() -> None:
    assert hit(group(1), ".x.") == [0, 11]
    assert hit(group(1), "...") == []


@pytest.mark.parametrize(
    ("cached", "blocks"),
    [("xxx.", [10, 11]), (".xxx", [0, 11, 12]), (".xx.", []), ("x", []), ("xx.x", [10])],
)
def test_a_drafter_needs_a_block_more_and_drops_it(cached: str, blocks: list[int]) -> None:
    assert hit(group(4), cached, drop=True) == blocks


@pytest.mark.parametrize(
    ("cached", "drop", "blocks"),
    [
        ("xxx", False, [10, 11]),
        (".xxx", False, [0, 0, 12, 13]),
        ("..xx.", False, [0, 0, 12, 13]),
        (".xx..", False, []),
        ("x.", False, []),
        ("xxx..", True, [10, 11]),
        (".xx..", True, []),
        ("..xxx", True, [0, 0, 12, 13]),
        ("xxxx.", True, [10, 11]),
    ],
)
def test_a_hit_ends_where_the_alignment_lets_it(cached: str, drop: bool, blocks: list[int]) -> None:
    """Blocks of 2 tokens, hits of multiples of 4."""
    assert hit(group(4), cached, drop=drop, alignment=4) == blocks


def test_the_window_of_the_next_token_is_kept() -> None:
    one = group(4)
    assert [one.get_num_skipped_tokens(computed) for computed in (0, 3, 4, 5, 11)] == [
        0,
        0,
        1,
        2,
        8,
    ]


def test_blocks_leave_the_window_tail_first_and_null_blocks_take_their_places() -> None:
    one = group(4)
    blocks = one.block_pool.get_new_blocks(6)
    one.req_to_blocks["a"] = list(blocks)
    for computed, gone in ((0, 0), (4, 0), (5, 1), (6, 1), (7, 2), (11, 4)):
        one.remove_skipped_blocks("a", computed)
        ids = [block.block_id for block in one.req_to_blocks["a"]]
        assert ids == [0] * gone + [1, 2, 3, 4, 5, 6][gone:]
    queue = one.block_pool.free_block_queue.get_all_free_blocks()
    assert [block.block_id for block in queue[:4]] == [4, 3, 2, 1]
    one.remove_skipped_blocks("a", 100)
    assert one.req_to_blocks["a"] == [one.block_pool.null_block] * 6
    one.remove_skipped_blocks("nobody", 100)


def test_null_blocks_among_those_found_are_not_needed() -> None:
    one = group(4)
    found = [KVCacheBlock(at) for at in range(1, 11)]
    assert one.get_num_blocks_to_allocate("a", 40, found, 0, 0, 40) == 20
    half = [one.block_pool.null_block] * 5 + found[:5]
    assert one.get_num_blocks_to_allocate("b", 40, half, 0, 0, 40) == 15


def test_found_blocks_that_have_left_the_window_are_not_needed() -> None:
    one = group(4)
    found = [one.block_pool.blocks[at] for at in range(1, 6)]
    # Of 10 computed tokens 7 have left the window: three blocks.
    assert one.get_num_blocks_to_allocate("a", 12, found, 10, 10, 12) == 1 + 2
    one.add_local_computed_blocks("a", found, 10, 0)
    assert [block.block_id for block in one.req_to_blocks["a"]] == [0, 0, 0, 4, 5]
    assert [block.ref_cnt for block in found] == [0, 0, 0, 1, 1]
    assert one.num_cached_block["a"] == 5


def test_external_tokens_before_the_window_take_no_blocks() -> None:
    one = group(4)
    one.add_local_computed_blocks("a", [], 0, 10)
    one.allocate_external_computed_blocks("a", 0, 10)
    assert [block.block_id for block in one.req_to_blocks["a"]] == [0, 0, 0, 1, 2]
    tiny = group(1)
    tiny.add_local_computed_blocks("a", [], 0, 4)
    tiny.allocate_external_computed_blocks("a", 0, 4)
    assert tiny.req_to_blocks["a"] == [tiny.block_pool.null_block] * 2


def test_admission_reckons_with_the_blocks_that_leave_on_the_way() -> None:
    one = group(4, cap=3)
    assert one.get_num_blocks_to_allocate("a", 40, [], 0, apply_admission_cap=True) == 3
    assert one.get_num_blocks_to_allocate("a", 40, [], 0) == 20


def test_what_is_foretold_is_what_is_taken() -> None:
    one = group(8)
    computed = 0
    for tokens in (4, 8, 13, 16):
        foretold = one.get_num_blocks_to_allocate("a", tokens, [], computed)
        assert len(one.allocate_new_blocks("a", tokens)) == foretold
        computed = tokens


def retained(interval: int | None, *boundaries: int, tokens: int = 16, eagle: bool = False) -> set[int] | None:  # fmt: skip
    mask = SlidingWindowManager.reachable_block_mask(
        start_block=0,
        end_block=16,
        alignment_tokens=32,
        kv_cache_spec=window(tokens, 16),
        use_eagle=eagle,
        retention_interval=interval,
        reachable_boundaries=boundaries,
    )
    return None if mask is None else {at for at, kept in enumerate(mask) if kept}


def test_only_blocks_before_a_place_where_hits_end_are_worth_caching() -> None:
    """Blocks of 16 tokens, hits of multiples of 32, windows of one block or of three."""
    assert retained(None) == {1, 3, 5, 7, 9, 11, 13, 15}
    assert retained(None, tokens=48) is None
    assert retained(64) == {3, 7, 11, 15}
    assert retained(64, 255, 100) == {3, 5, 7, 11, 13, 15}
    assert retained(0) == set()
    assert retained(0, 255) == {13}
    assert retained(0, 255, tokens=48) == {11, 12, 13}
    assert retained(0, 32 * 16) == set()
    assert retained(128, eagle=True) == {7, 8, 15}
    assert retained(0, 96, eagle=True) == {5, 6}


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


def test_a_request_holds_its_window_while_it_runs() -> None:
    cache = manager(20, window(8), enable_kv_cache_events=True)
    one = request("a", range(12))
    admit(cache, one)
    one.status = RequestStatus.RUNNING
    held = []
    for token in range(12):
        one.append_output_token_ids(token)
        assert cache.allocate_slots(one, 1) is not None
        one.num_computed_tokens += 1
        held.append(sum(block_id > 0 for block_id in table(cache, one)[0]))
        cache.check()
    assert max(held) == 3
    cache.free(one)
    assert len(free_ids(cache)) == 19
    stored = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    assert [event.kv_cache_spec_sliding_window for event in stored] == [8] * 4
    assert {event.kv_cache_spec_kind for event in stored} == {"sliding_window"}


@pytest.mark.parametrize("by_hand", [True, False])
def test_tokens_in_flight_hold_the_window_back(by_hand: bool) -> None:
    cache = manager(20, window(5))
    one = request("a", range(16))
    admit(cache, one)
    one.status = RequestStatus.RUNNING
    if by_hand:
        cache.remove_skipped_blocks("a", 16 - 6)
    else:
        one.append_output_token_ids(1)
        one.num_in_flight_tokens = 6
        cache.allocate_slots(one, 1)
    assert table(cache, one)[0][:4] == [0, 2, 3, 4]


def test_a_hit_can_end_beyond_blocks_that_are_lost() -> None:
    cache = manager(20, window(5))
    first = request("a", range(13))
    admit(cache, first)
    cache.evict_blocks([1, 2])
    found, cached, _ = cache.get_computed_blocks(request("b", range(13)))
    assert (found.get_block_ids(), cached) == (([0, 0, 3],), 12)
