"""The manager, whatever its groups, over a pool that is too small for all that is asked of it."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.v1.small_cache import (
    Announced,
    free_ids,
    full,
    manager,
    request,
    table,
    window,
)
from warmpath.lab.simworker.v1.hashing.block_hash import make_block_hash_with_group_id
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.specs.kv_cache_spec import SlidingWindowSpec

MODELS: list[tuple[int, Sequence[Any], int]] = [
    (9, (full(),), 4),
    (18, (full(), window(7)), 4),
    (22, (full(), window(7), window(3)), 4),
    (20, (full(4), window(5, 2)), 4),
    (18, (full(2), window(5, 4)), 4),
]
"""Blocks, groups, and the tokens that hits are a multiple of."""


class AnyHistory(RuleBasedStateMachine):
    """Requests come, grow, are preempted, found again and go; blocks are evicted, the cache is reset."""

    @initialize(model=st.sampled_from([0, *range(len(MODELS))]))
    def begin(self, model: int) -> None:
        blocks, specs, self.alignment = MODELS[model]
        self.longest = 30 if model else 40
        self.cache = manager(
            blocks, *specs, max_model_len=self.longest, enable_kv_cache_events=True
        )
        self.hash_size = self.cache.block_pool.hash_block_size
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.announced = Announced()
        self.number = 0

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

    def start(self, one: Request, chunk: int, **options: Any) -> None:
        """Let a request run, or wait if it does not fit."""
        found, cached, boundary = self.cache.get_computed_blocks(one)
        assert cached == self.longest_hit(one)
        assert boundary == 0 or boundary > cached
        for group, blocks in zip(
            self.cache.kv_cache_config.kv_cache_groups, found.blocks, strict=True
        ):
            assert len(blocks) * group.kv_cache_spec.block_size == cached
        one.shared_prefix_boundary = boundary
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
        one = request(str(self.number), tokens, self.hash_size)
        self.start(one, chunk, num_lookahead_tokens=lookahead, full_sequence_must_fit=whole)

    @precondition(lambda self: self.waiting)
    @rule(chunk=st.integers(1, 20))
    def come_again(self, chunk: int) -> None:
        self.start(self.waiting.pop(0), chunk)

    @precondition(lambda self: self.running)
    @rule(
        which=st.integers(0, 9), count=st.integers(1, 6), drafts=st.integers(0, 3),
        in_flight=st.integers(0, 4),
    )  # fmt: skip
    def step(self, which: int, count: int, drafts: int, in_flight: int) -> None:
        one = self.running[which % len(self.running)]
        left = one.num_tokens - one.num_computed_tokens
        if not left:
            left = min(count, self.longest - one.num_tokens)
            if not left:
                return
            one.append_output_token_ids([count % 2] * left)
        one.num_in_flight_tokens = min(in_flight, one.num_computed_tokens)
        new = min(left, count)
        if self.cache.allocate_slots(one, new + drafts * (new == left)) is None:
            self.preempt(which)
            return
        one.num_computed_tokens += new

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def preempt(self, which: int) -> None:
        one = self.running.pop(which % len(self.running))
        self.cache.free(one)
        one.num_computed_tokens = one.num_in_flight_tokens = 0
        one.status = RequestStatus.PREEMPTED
        self.waiting.append(one)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        self.cache.free(self.running.pop(which % len(self.running)))

    @rule(block=st.integers(0, 99))
    def evict(self, block: int) -> None:
        self.cache.evict_blocks([1 + block % (len(self.cache.block_pool.blocks) - 1)])

    @rule()
    def reset(self) -> None:
        assert self.cache.reset_prefix_cache() == (not self.running)

    @invariant()
    def nothing_is_leaked(self) -> None:
        self.cache.check()
        tables = [ids for one in self.running for ids in table(self.cache, one)]
        held = {block for ids in tables for block in ids if block}
        blocks = len(self.cache.block_pool.blocks)
        assert sorted([*held, *free_ids(self.cache)]) == list(range(1, blocks))

    @invariant()
    def each_group_holds_what_the_next_token_reads_and_its_own_content(self) -> None:
        blocks = self.cache.block_pool.blocks
        for one in self.running:
            tables = table(self.cache, one)
            for group, ids in zip(self.cache.coordinator.single_type_managers, tables, strict=True):
                size = group.block_size
                first = group.get_num_skipped_tokens(one.num_computed_tokens) // size
                end = -(-one.num_computed_tokens // size)
                assert len(ids) >= end
                assert all(ids[first:end])
                if size == self.hash_size:
                    for block_id, digest in zip(ids, one.block_hashes, strict=False):
                        key = make_block_hash_with_group_id(digest, group.kv_cache_group_id)
                        assert blocks[block_id].block_hash in {None, key}

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        self.announced.check(self.cache.take_events(), self.cache.block_pool)


TestAnyHistory = long_test(AnyHistory)
