"""One suite for every backend of the index."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indexer.index import Index, Run
from indexer.memory import MemoryIndex
from indexer.reference import ReferenceIndex

BACKENDS: dict[str, Callable[[], Index]] = {
    "reference": ReferenceIndex,
    "memory": MemoryIndex,
}


@pytest.fixture(params=BACKENDS)
def index(request: pytest.FixtureRequest) -> Index:
    return BACKENDS[request.param]()


def sweep_all(index: Index) -> set[int]:
    swept: set[int] = set()
    for _ in range(10_000):
        swept |= set(index.sweep(7))
    return swept


def test_holders_are_runs_of_equal_sets(index: Index) -> None:
    index.add(0, [10, 11, 12, 13])
    index.add(5, [10, 11])
    assert index.holders([10, 11, 12, 13, 99]) == [
        Run(0, 2, frozenset({0, 5})),
        Run(2, 4, frozenset({0})),
        Run(4, 5, frozenset()),
    ]


def test_no_keys_have_no_runs(index: Index) -> None:
    assert index.holders([]) == []


def test_a_hole_is_a_run_of_nobody(index: Index) -> None:
    index.add(3, [1, 3])
    assert index.holders([1, 2, 3]) == [
        Run(0, 1, frozenset({3})),
        Run(1, 2, frozenset()),
        Run(2, 3, frozenset({3})),
    ]


def test_removing_one_slots_hold_leaves_the_others(index: Index) -> None:
    index.add(1, [7])
    index.add(2, [7])
    index.remove(1, [7, 8])
    assert index.holders([7]) == [Run(0, 1, frozenset({2}))]
    assert (index.count(1), index.count(2)) == (0, 1)


def test_adding_and_removing_twice_changes_nothing(index: Index) -> None:
    index.add(1, [7, 7])
    index.add(1, [7])
    assert index.count(1) == 1
    index.remove(1, [7])
    index.remove(1, [7])
    assert index.stats().keys == 0
    index.check()


def test_a_dropped_slot_holds_nothing_at_once(index: Index) -> None:
    index.add(1, list(range(100)))
    index.add(2, list(range(50)))
    index.drop(1)
    assert index.holders(list(range(100))) == [
        Run(0, 50, frozenset({2})),
        Run(50, 100, frozenset()),
    ]
    assert index.stats().entries == 50


def test_a_dropped_slot_comes_back_empty_after_the_sweep(index: Index) -> None:
    index.add(1, list(range(100)))
    index.drop(1)
    assert 1 in sweep_all(index)
    index.add(1, [5])
    assert index.holders([4, 5]) == [Run(0, 1, frozenset()), Run(1, 2, frozenset({1}))]
    assert index.stats().keys == 1
    index.check()


def test_a_slot_dropped_during_a_sweep_is_swept_by_the_next(index: Index) -> None:
    index.add(1, list(range(100)))
    index.add(2, list(range(100)))
    index.drop(1)
    index.sweep(10)
    index.drop(2)
    sweep_all(index)
    index.add(2, [1])
    assert index.stats().entries == 1
    assert index.stats().keys == 1
    index.check()


KEYS = st.lists(st.integers(0, 15), max_size=8)
SLOTS = st.integers(0, 70)


class EveryBackendAgrees(RuleBasedStateMachine):
    """Drives all backends with one history; few keys, so that they collide all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.backends = [make() for make in BACKENDS.values()]
        self.waiting: set[int] = set()
        """Dropped slots that some backend has not swept."""
        self.swept: list[set[int]] = [set() for _ in self.backends]

    @rule(slot=SLOTS, keys=KEYS)
    def add(self, slot: int, keys: list[int]) -> None:
        if slot not in self.waiting:
            for backend in self.backends:
                backend.add(slot, keys)

    @rule(slot=SLOTS, keys=KEYS)
    def remove(self, slot: int, keys: list[int]) -> None:
        for backend in self.backends:
            backend.remove(slot, keys)

    @rule(slot=SLOTS)
    def drop(self, slot: int) -> None:
        if slot not in self.waiting:
            self.waiting.add(slot)
            for backend in self.backends:
                backend.drop(slot)

    @precondition(lambda self: self.waiting)
    @rule(budget=st.integers(1, 20))
    def sweep(self, budget: int) -> None:
        for backend, swept in zip(self.backends, self.swept, strict=True):
            swept.update(backend.sweep(budget))
        done = set.intersection(*self.swept)
        self.waiting -= done
        for swept in self.swept:
            swept.difference_update(done)

    @rule(keys=KEYS)
    def look_up(self, keys: list[int]) -> None:
        first, *others = (backend.holders(keys) for backend in self.backends)
        assert all(other == first for other in others)

    @invariant()
    def agree(self) -> None:
        for backend in self.backends:
            backend.check()
        assert len({backend.stats().entries for backend in self.backends}) == 1


EveryBackendAgrees.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestEveryBackendAgrees = EveryBackendAgrees.TestCase
