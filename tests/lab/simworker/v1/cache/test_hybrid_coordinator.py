"""Models with groups of several kinds: a prefix is of use where every group has what it needs."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v1.cache.cache_machine import CacheMachine
from tests.lab.simworker.v1.small_cache import admit, config, full, manager, request, table, window
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.cache.simple_coordinators import UnitaryKVCacheCoordinator
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.specs.kv_cache_spec import SlidingWindowSpec, UniformTypeKVCacheSpecs


def test_the_kind_of_coordinator_follows_from_the_groups() -> None:
    assert isinstance(manager(9).coordinator, UnitaryKVCacheCoordinator)
    assert isinstance(manager(9, window(4)).coordinator, UnitaryKVCacheCoordinator)
    without = manager(9, full(), full(), enable_caching=False).coordinator
    assert without.find_longest_cache_hit([b"a"], 9) == (([], []), 0, 0)


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
