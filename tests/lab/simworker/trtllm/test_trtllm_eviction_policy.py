"""The eviction policy: a few plain cases, and everything else against the oracle."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.clock import Clock
from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import (
    LRUEvictionPolicy,
    NoFreeBlocksError,
)
from warmpath.lab.simworker.trtllm.blocks.pools import BlockPools
from warmpath.lab.simworker.trtllm.blocks.retention import DEFAULT_PRIORITY

PRIORITIES = st.sampled_from([None, 0, 10, 30, 35, 80, 100])
DURATIONS = st.sampled_from([None, 0, 1000, 5000])


class Bench:
    def __init__(self, primary: int = 4, secondary: int = 2) -> None:
        self.clock = Clock()
        self.blocks = BlockPools(primary, secondary).blocks
        self.policy = LRUEvictionPolicy(self.blocks, self.clock)

    def take(
        self, level: int = 0, priority: int | None = None, ms: int | None = None
    ) -> KVCacheBlock:
        block, _ = self.policy.get_free_block(level)
        self.policy.claim_block(block, priority, ms)
        return block

    def drain(self) -> list[int]:
        """Take all blocks that are free; return their ids."""
        return [self.take().block_id for _ in range(self.policy.get_num_free_blocks(0))]


def test_lower_priorities_go_first_and_are_not_worth_offloading() -> None:
    bench = Bench()
    precious, cheap = bench.take(priority=80), bench.take(priority=5)
    bench.policy.release_block(precious)
    assert bench.policy.get_free_block(0)[1] is True
    bench.policy.release_block(cheap)
    assert bench.policy.get_free_block(0) == (cheap, False)
    assert bench.drain() == [cheap.block_id, 2, 3, precious.block_id]


def test_blocks_of_the_host_are_never_offloaded() -> None:
    block, worth_offloading = Bench().policy.get_free_block(1)
    assert not block.is_primary
    assert not worth_offloading


def test_an_empty_level_has_nothing_to_give() -> None:
    bench = Bench(secondary=0)
    with pytest.raises(NoFreeBlocksError, match="level 1"):
        bench.policy.get_free_block(1)


@dataclass
class Free:
    block_id: int
    level: int
    priority: int
    place: int
    expires: float | None = None


@dataclass
class EvictionOracle:
    """One list of all free blocks, numbers here; `place` orders those of one level and priority."""

    free: list[Free] = field(default_factory=list)
    priorities: dict[int, int] = field(default_factory=dict)
    durations: dict[int, int | None] = field(default_factory=dict)
    places: int = 0

    def release(self, block_id: int, level: int, now: float) -> None:
        self.places += 1
        priority = self.priorities.get(block_id, DEFAULT_PRIORITY)
        duration = self.durations.get(block_id)
        ends = (
            now + duration / 1000 if duration is not None and priority != DEFAULT_PRIORITY else None
        )
        self.free.append(Free(block_id, level, priority, self.places, ends))

    def claim(self, block_id: int, priority: int | None, duration: int | None) -> None:
        self.free = [one for one in self.free if one.block_id != block_id]
        if priority is not None:
            self.priorities[block_id] = priority
        self.durations[block_id] = duration

    def refresh(self, now: float) -> None:
        ended = [one for one in self.free if one.expires is not None and one.expires <= now]
        for one in sorted(ended, key=lambda one: (one.expires, one.block_id)):
            self.places += 1
            one.priority, one.place, one.expires = DEFAULT_PRIORITY, self.places, None
            self.priorities[one.block_id] = DEFAULT_PRIORITY

    def next(self, level: int) -> int | None:
        waiting = [one for one in self.free if one.level == level]
        return min(waiting, key=lambda one: (one.priority, one.place)).block_id if waiting else None

    def count(self, level: int) -> int:
        return sum(one.level == level for one in self.free)


class EvictionMachine(RuleBasedStateMachine):
    """The policy and the oracle get the same calls; they must always name the same block."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(3, 2)
        self.oracle = EvictionOracle()
        self.used: list[KVCacheBlock] = []
        for block in self.bench.blocks:
            self.oracle.release(block.block_id, block.slot.level, 0.0)

    def claim(self, block: KVCacheBlock, priority: int | None, duration: int | None) -> None:
        self.bench.policy.claim_block(block, priority, duration)
        self.oracle.claim(block.block_id, priority, duration)

    @rule(level=st.integers(0, 1), priority=PRIORITIES, duration=DURATIONS)
    def take(self, level: int, priority: int | None, duration: int | None) -> None:
        expected = self.oracle.next(level)
        if expected is not None:
            block, _ = self.bench.policy.get_free_block(level)
            assert block.block_id == expected
            self.claim(block, priority, duration)
            self.used.append(block)

    @rule(data=st.data(), priority=PRIORITIES, duration=DURATIONS)
    def claim_any(self, data: st.DataObject, priority: int | None, duration: int | None) -> None:
        block = data.draw(st.sampled_from(self.bench.blocks))
        self.claim(block, priority, duration)
        if block not in self.used:
            self.used.append(block)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = self.used.pop(data.draw(st.integers(0, len(self.used) - 1)))
        self.bench.policy.release_block(block)
        self.oracle.release(block.block_id, block.slot.level, self.bench.clock.now)

    @rule(data=st.data())
    def trade_slots(self, data: st.DataObject) -> None:
        if len(self.used) >= 2:
            one, other = data.draw(st.permutations(self.used))[:2]
            one.slot, other.slot = other.slot, one.slot

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.bench.clock.now += seconds
        self.bench.policy.refresh()
        self.oracle.refresh(self.bench.clock.now)

    @invariant()
    def they_agree(self) -> None:
        self.bench.policy.check()
        for level in (0, 1):
            assert self.bench.policy.get_num_free_blocks(level) == self.oracle.count(level)
            if self.oracle.count(level):
                block, _ = self.bench.policy.get_free_block(level)
                assert block.block_id == self.oracle.next(level)
        for block in self.bench.blocks:
            assert block.priority == self.oracle.priorities.get(block.block_id, 35)


TestEviction = long_test(EvictionMachine)
