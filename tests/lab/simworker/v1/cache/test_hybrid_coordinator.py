"""Models with groups of several kinds: a prefix is of use where every group has what it needs."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v1.cache.cache_machine import CacheMachine
from tests.lab.simworker.v1.small_cache import admit, config, full, manager, request, table, window
from warmpath.lab.simworker.v1.cache.coordinator import replay_boundaries
from warmpath.lab.simworker.v1.cache.hybrid_coordinator import HybridKVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockStored
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.cache.simple_coordinators import UnitaryKVCacheCoordinator
from warmpath.lab.simworker.v1.hashing.block_hash import make_block_hash_with_group_id
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.specs.kv_cache_spec import SlidingWindowSpec, UniformTypeKVCacheSpecs


def lose(cache: KVCacheManager, one: Request, block: int, group: int) -> None:
    key = make_block_hash_with_group_id(one.block_hashes[block], group)
    block_of = cache.block_pool.cached_block_hash_to_block.get_one_block(key)
    assert block_of is not None
    cache.evict_blocks([block_of.block_id])


def test_groups_that_are_alike_are_looked_up_together_and_full_attention_first() -> None:
    cache = manager(50, window(8), full(), window(12), full(), window(8))
    coordinator = cache.coordinator
    assert isinstance(coordinator, HybridKVCacheCoordinator)
    assert [group.group_ids for group in coordinator.attention_groups] == [[1, 3], [0, 4], [2]]


def test_the_kind_of_coordinator_follows_from_the_groups() -> None:
    assert isinstance(manager(9).coordinator, UnitaryKVCacheCoordinator)
    assert isinstance(manager(9, window(4)).coordinator, UnitaryKVCacheCoordinator)
    without = manager(9, full(), full(), enable_caching=False).coordinator
    assert without.find_longest_cache_hit([b"a"], 9) == (([], []), 0, 0)


def test_every_group_gets_its_blocks_and_windows_are_found_without_their_past() -> None:
    cache = manager(40, full(), window(8), window(8))
    first = request("a", [*range(12), 90])
    admit(cache, first)
    assert table(cache, first) == ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12])
    second = request("b", [*range(12), 91])
    found, cached, _ = cache.get_computed_blocks(second)
    assert (found.get_block_ids(), cached) == (([1, 2, 3], [0, 6, 7], [0, 10, 11]), 12)
    new = cache.allocate_slots(second, 1, cached, found)
    assert new is not None
    assert new.get_block_ids() == ([13], [14], [15])
    cache.check()


@pytest.mark.parametrize(
    ("lost", "hit"),
    [
        ([(0, 1), (0, 2)], 3),  # before the window of all three blocks
        ([(0, 0)], 0),
        ([(2, 0), (2, 1), (2, 2)], 2),
        ([(2, 0)], 2),
        ([(2, 1)], 2),
        ([(2, 2)], 2),
        ([(2, 0), (0, 1), (0, 2)], 0),  # full attention has two, whose window has lost its first
    ],
)
def test_a_hit_is_what_all_groups_have(lost: list[tuple[int, int]], hit: int) -> None:
    cache = manager(40, full(), window(8), window(8))
    first = request("a", [*range(12), 90])
    admit(cache, first)
    for block, group in lost:
        lose(cache, first, block, group)
    found, cached, _ = cache.get_computed_blocks(request("b", [*range(12), 91]))
    assert cached == hit * 4
    assert [len(blocks) for blocks in found.blocks] in ([hit] * 3, [0] * 3)


def test_a_prefix_that_one_group_has_beyond_the_hit_is_named() -> None:
    cache = manager(40, full(), window(8))
    first = request("a", [*range(16), 90])
    admit(cache, first)
    lose(cache, first, 3, 1)
    assert cache.get_computed_blocks(request("b", [*range(16), 91]))[1:] == (12, 16)


def test_two_windows_shorten_a_hit_until_both_agree() -> None:
    cache = manager(60, full(), window(16), window(8))
    first = request("a", range(21))
    admit(cache, first)
    lose(cache, first, 4, 1)
    lose(cache, first, 3, 2)
    # The wide window ends at 16, the narrow one at 20 or 12, where the wide one can end as well.
    assert cache.get_computed_blocks(request("b", range(21)))[1] == 12


def test_windows_alone_make_a_hybrid_too() -> None:
    cache = manager(60, window(8), window(12))
    first = request("a", range(17))
    admit(cache, first)
    lose(cache, first, 0, 0)
    lose(cache, first, 0, 1)
    found, cached, _ = cache.get_computed_blocks(request("b", range(17)))
    assert (cached, found.get_block_ids()) == (16, ([0, 0, 3, 4], [0, 7, 8, 9]))


def test_blocks_of_two_sizes_end_where_both_do() -> None:
    cache = manager(60, full(8), window(8, 4))
    first = request("a", range(40))
    found, cached, _ = cache.get_computed_blocks(first)
    new = cache.allocate_slots(first, 28, cached, found)
    assert new is not None
    assert new.get_block_ids() == ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11])
    found, cached, _ = cache.get_computed_blocks(request("b", range(29)))
    assert (cached, [len(blocks) for blocks in found.blocks]) == (24, [3, 6])
    lose(cache, first, 5, 1)
    assert cache.get_computed_blocks(request("c", range(29)))[1] == 16


def cached_in(cache: KVCacheManager, one: Request, group: int) -> set[int]:
    return {
        at
        for at, digest in enumerate(one.block_hashes)
        if cache.block_pool.get_cached_block(digest, [group])
    }


def test_what_no_hit_can_use_is_not_cached() -> None:
    cache = manager(90, full(16), window(4, 4), enable_kv_cache_events=True)
    one = request("a", range(38))
    admit(cache, one)
    assert cached_in(cache, one, 1) == {3, 7}
    assert cached_in(cache, one, 0) == {3, 7}
    one.append_output_token_ids([1] * 10)
    cache.allocate_slots(one, 10)
    assert cached_in(cache, one, 1) == {3, 7, 11}
    # The prompt's tail as well, up to the last hash that a repetition could use.
    assert cached_in(cache, one, 0) == {3, 7, 8, 11}
    events = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    assert [
        (event.group_idx, event.block_size, len(event.block_hashes), len(event.token_ids))
        for event in events
    ] == [(0, 16, 2, 32), (1, 4, 2, 32), (0, 16, 1, 16), (0, 4, 1, 4), (1, 4, 1, 16)]
    cache.check()


@pytest.mark.parametrize(("retention", "kept"), [(None, {3, 7, 11, 15}), (32, {7, 11, 15}), (0, {11})])  # fmt: skip
def test_sparse_retention_keeps_what_a_repetition_can_use(
    retention: int | None, kept: set[int]
) -> None:
    cache = manager(90, full(16), window(4, 4), retention=retention)
    one = request("a", range(64))
    admit(cache, one)
    assert cached_in(cache, one, 1) == kept
    assert cache.get_computed_blocks(request("b", range(64)))[1] == 48
    shorter = cache.get_computed_blocks(request("c", range(49)))[1]
    assert shorter == 48


@pytest.mark.parametrize("pin", [True, False])
def test_a_shared_prefix_is_kept_where_it_is_pinned(pin: bool) -> None:
    cache = manager(90, full(), window(8), retention=0)
    shared = [7] * 16
    admit(cache, request("a", [*shared, *range(50, 58)]))
    second = request("b", [*shared, *range(60, 68)])
    found, cached, boundary = cache.get_computed_blocks(second)
    assert (cached, boundary) == (0, 16)
    second.shared_prefix_boundary = boundary if pin else 0
    cache.allocate_slots(second, 24, cached, found)
    hit = cache.get_computed_blocks(request("c", [*shared, *range(70, 78)]))[1]
    assert hit == (16 if pin else 0)


@pytest.mark.parametrize(
    ("tokens", "eagle", "boundaries"),
    [
        (40, False, (39,)),
        (40, True, (24, 32)),
        (41, True, (32,)),
        (7, True, (0,)),
    ],
)
def test_a_replay_goes_on_before_its_last_token(
    tokens: int, eagle: bool, boundaries: tuple[int, ...]
) -> None:
    assert replay_boundaries(tokens, 8, use_eagle=eagle) == boundaries


def test_a_drafter_drops_one_block_in_all_groups_together() -> None:
    cache = manager(60, full(), window(12), use_eagle=True)
    first = request("a", range(27))
    admit(cache, first)
    second = request("b", range(27))
    found, cached, _ = cache.get_computed_blocks(second)
    assert cached == 20
    assert [len(blocks) for blocks in found.blocks] == [5, 5]
    lose(cache, first, 5, 0)
    assert cache.get_computed_blocks(second)[1] == 16


def drafted_window(spec: SlidingWindowSpec) -> KVCacheManager:
    groups = config(90, full(16), spec, spec)
    groups.kv_cache_groups[2].is_eagle_group = True
    return KVCacheManager(groups, 1000, use_eagle=True)


def test_a_drafters_window_and_those_alike_are_cached_one_block_further() -> None:
    cache = drafted_window(window(4, 4))
    one = request("a", range(36))
    admit(cache, one)
    assert cached_in(cache, one, 1) == cached_in(cache, one, 2) == {3, 4, 7, 8}
    assert cache.get_computed_blocks(request("b", range(37)))[1] == 32


def test_a_lookahead_of_several_modules_holds_the_last_tokens_back() -> None:
    cache = manager(60, full(), use_eagle=True, num_prefill_lookahead=4)
    one = request("a", range(14))
    admit(cache, one)
    assert cached_in(cache, one, 0) == {0, 1}


def test_external_blocks_of_one_group_are_not_those_found_by_another() -> None:
    cache = manager(31, full(), window(1000))
    blocks = cache.block_pool.free_block_queue.get_all_free_blocks()[:10]
    found = KVCacheBlocks((blocks[:5], blocks[5:]))
    one = request("a", [0] * 32)
    cache.allocate_slots(one, 4, 20, found, 0, 8)
    ids = [block_id for group in table(cache, one) for block_id in group]
    assert len(set(ids)) == len(ids) == 16
    cache.check()


def test_a_long_prompt_is_let_in_where_its_window_gives_blocks_back() -> None:
    options = {"max_model_len": 256, "max_in_flight_tokens": 32}
    cache = manager(64 + 13 + 1, full(), window(16), **options)
    assert cache.allocate_slots(request("a", range(128)), 4, full_sequence_must_fit=True)
    tight = manager(20, full(), window(16), **options)
    assert tight.allocate_slots(request("b", range(128)), 4, full_sequence_must_fit=True) is None


def test_layers_of_one_kind_with_pages_of_two_sizes_are_one_group() -> None:
    groups = config(20, full())
    spec = UniformTypeKVCacheSpecs.from_specs({"a": full(), "b": full()})
    assert spec is not None
    groups.kv_cache_groups[0].kv_cache_spec = spec
    cache = KVCacheManager(groups, 100)
    admit(cache, request("a", range(9)))
    assert cache.get_computed_blocks(request("b", range(9)))[1] == 8


def test_hashes_that_divide_no_block_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"hash_block_size: 8 does not divide kv_cache_groups\[1\]'s 4"
    ):
        manager(20, full(8), window(8, 4), hash_block_size=8)


MODELS: list[tuple[int, Sequence[object], int]] = [
    (18, (full(), window(7)), 4),
    (22, (full(), window(7), window(3)), 4),
    (20, (full(4), window(5, 2)), 4),
    (18, (full(2), window(5, 4)), 4),
]
"""Blocks, groups, and the tokens that hits are a multiple of."""


class AnyHistory(CacheMachine):
    """As with one group; a hit is compared with what looking at every length finds."""

    @initialize(model=st.sampled_from(range(len(MODELS))))
    def begin(self, model: int) -> None:
        blocks, specs, self.alignment = MODELS[model]
        self.cache = manager(blocks, *specs, max_model_len=30)  # type: ignore[arg-type]
        self.hash_size = self.cache.block_pool.hash_block_size

    def holds(self, one: Request, group: int, length: int) -> bool:
        """Say whether a group has all that it would read of a prefix."""
        spec = self.cache.kv_cache_config.kv_cache_groups[group].kv_cache_spec
        size = spec.block_size
        first = 0
        if isinstance(spec, SlidingWindowSpec):
            first = max(0, length // size - -(-(spec.sliding_window - 1) // size))
        return all(
            self.cache.block_pool.get_cached_block(
                one.block_hashes[(at + 1) * size // self.hash_size - 1], [group]
            )
            for at in range(first, length // size)
        )

    def longest_hit(self, one: Request) -> int:
        longest = (one.num_tokens - 1) // self.alignment * self.alignment
        groups = range(self.cache.num_kv_cache_groups)
        for length in range(longest, 0, -self.alignment):
            if all(self.holds(one, group, length) for group in groups):
                return length
        return 0

    def start(self, one: Request, chunk: int, *, whole: bool = False) -> None:
        found, cached, boundary = self.cache.get_computed_blocks(one)
        assert cached == self.longest_hit(one)
        assert boundary == 0 or boundary > cached
        for group, blocks in zip(
            self.cache.kv_cache_config.kv_cache_groups, found.blocks, strict=True
        ):
            assert len(blocks) * group.kv_cache_spec.block_size == cached
        one.shared_prefix_boundary = boundary
        new = min(one.num_tokens - cached, chunk)
        if self.cache.allocate_slots(one, new, cached, found, full_sequence_must_fit=whole) is None:
            self.waiting.append(one)
            return
        one.num_computed_tokens = cached + new
        one.status = RequestStatus.RUNNING
        self.running.append(one)

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=18),
        chunk=st.integers(1, 18),
        whole=st.booleans(),
    )
    def come(self, tokens: list[int], chunk: int, *, whole: bool) -> None:
        self.number += 1
        self.start(request(str(self.number), tokens, self.hash_size), chunk, whole=whole)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), count=st.integers(1, 6), in_flight=st.integers(0, 4))
    def step(self, which: int, count: int, in_flight: int) -> None:
        one = self.running[which % len(self.running)]
        left = one.num_tokens - one.num_computed_tokens
        if not left:
            left = min(count, 30 - one.num_tokens)
            if not left:
                return
            one.append_output_token_ids([0] * left)
        one.num_in_flight_tokens = min(in_flight, one.num_computed_tokens)
        new = min(left, count)
        if self.cache.allocate_slots(one, new) is None:
            self.preempt(which)
            return
        one.num_computed_tokens += new

    @invariant()
    def nothing_is_leaked(self) -> None:
        self.cache.check()

    @invariant()
    def each_group_holds_what_the_next_token_reads(self) -> None:
        for one in self.running:
            tables = table(self.cache, one)
            for group, ids in zip(self.cache.coordinator.single_type_managers, tables, strict=True):
                skipped = group.get_num_skipped_tokens(one.num_computed_tokens)
                read = ids[
                    skipped // group.block_size : -(-one.num_computed_tokens // group.block_size)
                ]
                assert all(read)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = LONG
