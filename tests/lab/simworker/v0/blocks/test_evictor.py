"""The evictor, in two implementations: which cached block gives way first."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.v0.blocks.evictor import Evictor, LinearEvictor, LRUEvictor

MakeEvictor = Callable[[], Evictor]
both = pytest.mark.parametrize("make", [LinearEvictor, LRUEvictor])


@both
def test_the_least_recently_used_goes_first(make: MakeEvictor) -> None:
    evictor = make()
    for block_id, accessed in [(1, 3.0), (2, 1.0), (3, 2.0)]:
        evictor.add(block_id, 100 + block_id, 16, accessed)
    assert [evictor.evict() for _ in range(3)] == [(2, 102), (3, 103), (1, 101)]


@both
def test_of_blocks_used_at_the_same_time_the_tail_goes_first(make: MakeEvictor) -> None:
    evictor = make()
    for block_id, tokens in [(1, 16), (2, 48), (3, 32)]:
        evictor.add(block_id, 100 + block_id, tokens, 5.0)
    assert [evictor.evict()[0] for _ in range(3)] == [2, 3, 1]


@both
def test_a_full_tie_goes_to_the_lowest_id(make: MakeEvictor) -> None:
    evictor = make()
    for block_id in (7, 3, 5):
        evictor.add(block_id, 10 - block_id, 16, 5.0)
    assert [evictor.evict()[0] for _ in range(3)] == [3, 5, 7]


@both
def test_a_later_access_saves_a_block(make: MakeEvictor) -> None:
    evictor = make()
    evictor.add(1, 101, 16, 1.0)
    evictor.add(2, 102, 16, 2.0)
    evictor.update(1, 3.0)
    assert [evictor.evict()[0], evictor.evict()[0]] == [2, 1]


@both
def test_a_block_taken_back_is_not_evicted(make: MakeEvictor) -> None:
    evictor = make()
    evictor.add(1, 101, 16, 1.0)
    evictor.add(2, 102, 16, 2.0)
    evictor.remove(1)
    assert 1 not in evictor
    assert 2 in evictor
    assert evictor.evict() == (2, 102)
    assert evictor.num_blocks == 0


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


def test_stale_entries_are_cleaned_away_above_fifty_a_block() -> None:
    evictor = LRUEvictor()
    evictor.add(1, 101, 16, 0.0)
    for now in range(1, 49 + 1):
        evictor.update(1, float(now))
    assert len(evictor.priority_queue) == 50
    evictor.update(1, 50.0)
    assert len(evictor.priority_queue) == 1
    assert evictor.evict() == (1, 101)


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
