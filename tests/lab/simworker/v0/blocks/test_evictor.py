"""The evictor, in two implementations: which cached block gives way first."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.v0.blocks.evictor import LinearEvictor, LRUEvictor

MakeEvictor = Callable[[], LinearEvictor]
both = pytest.mark.parametrize("make", [LinearEvictor, LRUEvictor])


@both
def test_a_block_that_comes_back_with_other_content_is_evicted_under_that(
    make: MakeEvictor,
) -> None:
    evictor = make()
    # Taken back and freed once more, it leaves a stale entry that only its hash tells apart.
    evictor.add(1, 101, 16, 1.0)
    evictor.remove(1)
    evictor.add(1, 202, 16, 1.0)
    assert evictor.evict() == (1, 202)
    with pytest.raises(ValueError, match="no block"):
        evictor.evict()


@both
def test_what_is_not_there_cannot_be_taken(make: MakeEvictor) -> None:
    evictor = make()
    with pytest.raises(ValueError, match="no block may be evicted"):
        evictor.evict()
    with pytest.raises(ValueError, match="block_id: 4"):
        evictor.remove(4)
    with pytest.raises(KeyError):
        evictor.update(4, 1.0)


BLOCKS = st.integers(0, 5)
TIMES = st.integers(-1, 3).map(float)


class HeapBesideTable(RuleBasedStateMachine):
    """The heap answers as looking through all blocks does."""

    def __init__(self) -> None:
        super().__init__()
        self.heap, self.table = LRUEvictor(), LinearEvictor()
        # So that it cleans itself within a few steps.
        self.heap.CLEANUP_THRESHOLD = 3  # type: ignore[misc]

    @rule(block_id=BLOCKS, content_hash=st.integers(0, 3), blocks=st.integers(1, 3), now=TIMES)
    def add(self, block_id: int, content_hash: int, blocks: int, now: float) -> None:
        if block_id not in self.table:
            for evictor in (self.heap, self.table):
                evictor.add(block_id, content_hash, blocks * 16, now)

    @rule(block_id=BLOCKS, now=TIMES)
    def update(self, block_id: int, now: float) -> None:
        if block_id in self.table:
            for evictor in (self.heap, self.table):
                evictor.update(block_id, now)

    @rule(block_id=BLOCKS)
    def remove(self, block_id: int) -> None:
        if block_id in self.table:
            for evictor in (self.heap, self.table):
                evictor.remove(block_id)

    @precondition(lambda self: self.table.num_blocks)
    @rule()
    def evict(self) -> None:
        assert self.heap.evict() == self.table.evict()

    @invariant()
    def same(self) -> None:
        self.heap.check()
        assert self.heap.free_table == self.table.free_table
        assert self.heap.num_blocks == self.table.num_blocks


TestHeapBesideTable = HeapBesideTable.TestCase
TestHeapBesideTable.settings = LONG
