"""The free queue against a plain deque."""

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.free_queue import FreeKVCacheBlockQueue
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock


def blocks(count: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(block_id) for block_id in range(count)]


def ids(queue: FreeKVCacheBlockQueue) -> list[int]:
    return [block.block_id for block in queue.get_all_free_blocks()]


def test_more_than_there_is_cannot_be_taken() -> None:
    queue = FreeKVCacheBlockQueue(blocks(1))
    with pytest.raises(ValueError, match="2 blocks needed, 1 are free"):
        queue.popleft_n(2)
    queue.popleft()
    with pytest.raises(ValueError, match="No free blocks available"):
        queue.popleft()
    queue.check()


def test_a_block_that_is_not_free_cannot_be_removed() -> None:
    all_blocks = blocks(2)
    queue = FreeKVCacheBlockQueue(all_blocks)
    taken = queue.popleft()
    with pytest.raises(RuntimeError, match="block_id=0"):
        queue.remove(taken)


def test_a_wrong_count_is_found() -> None:
    queue = FreeKVCacheBlockQueue(blocks(2))
    queue.num_free_blocks = 3
    with pytest.raises(BrokenInvariantError, match="num_free_blocks is 3"):
        queue.check()


def test_a_link_that_goes_one_way_is_found() -> None:
    first, second, third = blocks(3)
    queue = FreeKVCacheBlockQueue([first, second, third])
    third.prev_free_block = first
    with pytest.raises(BrokenInvariantError, match="linked one way only"):
        queue.check()


class AnyOrder(RuleBasedStateMachine):
    """Blocks leave at the front and from the middle, and come back at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(7)
        self.queue = FreeKVCacheBlockQueue(self.blocks)
        self.model = deque(range(7))
        self.outside: list[int] = []

    @precondition(lambda self: self.model)
    @rule()
    def popleft(self) -> None:
        block_id = self.model.popleft()
        assert self.queue.popleft() is self.blocks[block_id]
        self.outside.append(block_id)

    @rule(count=st.integers(0, 7))
    def popleft_n(self, count: int) -> None:
        count = min(count, len(self.model))
        expected = [self.model.popleft() for _ in range(count)]
        assert [block.block_id for block in self.queue.popleft_n(count)] == expected
        self.outside += expected

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 6))
    def remove(self, which: int) -> None:
        block_id = self.model[which % len(self.model)]
        self.model.remove(block_id)
        self.queue.remove(self.blocks[block_id])
        self.outside.append(block_id)

    @precondition(lambda self: self.outside)
    @rule()
    def append(self) -> None:
        block_id = self.outside.pop()
        self.model.append(block_id)
        self.queue.append(self.blocks[block_id])

    @rule(count=st.integers(0, 7))
    def append_n(self, count: int) -> None:
        back, self.outside = self.outside[:count], self.outside[count:]
        self.model.extend(back)
        self.queue.append_n([self.blocks[block_id] for block_id in back])

    @rule(count=st.integers(0, 7))
    def prepend_n(self, count: int) -> None:
        back, self.outside = self.outside[:count], self.outside[count:]
        self.model.extendleft(reversed(back))
        self.queue.prepend_n([self.blocks[block_id] for block_id in back])

    @invariant()
    def it_is_the_deque(self) -> None:
        self.queue.check()
        assert ids(self.queue) == list(self.model)
        assert self.queue.num_free_blocks == len(self.model)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = LONG
