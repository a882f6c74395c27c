"""The embedded forms at their bound in bytes: what is given up, and what never is."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.clock import Clock
from tests.conformance.reference_index import ReferenceIndex
from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.compiled import array_index
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.index.contract import Index

Bounded = Callable[[int, Clock], Index]
BACKENDS: dict[str, Bounded] = {"memory": MemoryIndex, "arrays": ArrayIndex}
BYTES = {"memory": 1 << 20, "arrays": 192 << 10}
"""Enough for a few thousand keys."""
CHAIN = 100


def chain(number: int) -> list[int]:
    return [(number << 32) + block for block in range(CHAIN)]


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def held(index: Index, keys: list[int]) -> int:
    return sum(stop - start for _, start, stop in index.stretches(keys))


def test_the_least_recently_matched_goes_first_and_the_deepest_of_it(name: str) -> None:
    clock = Clock()
    index = BACKENDS[name](BYTES[name], clock)
    index.add(1, chain(1))
    cold = range(1000, 1010)
    for number in cold:
        index.add(2, chain(number))
    clock.now = 10.0
    assert held(index, chain(1)) == CHAIN
    clock.now = 20.0
    number = 3
    while index.count(2) == len(cold) * CHAIN:
        index.add(3, chain(number))
        number += 1
    assert index.count(1) == CHAIN, "it was matched later than the others were stored"
    assert index.take_losers() == {2}
    assert index.stats().evicted > 0
    for one in cold:
        keys = chain(one)
        left = [key for key in keys if held(index, [key])]
        assert left == keys[: len(left)], "what is left of a chain is its beginning"


def test_nothing_is_refused_and_the_bound_is_kept(name: str) -> None:
    clock = Clock()
    index = BACKENDS[name](BYTES[name], clock)
    rng = Random(1)
    for number in range(400):
        clock.now += rng.random() * 5
        slot = rng.randrange(100)
        index.add(slot, chain(number))
        assert held(index, chain(number)) == CHAIN, "what has just been stored is there"
        assert index.stats().bytes <= BYTES[name]
        if rng.random() < 0.3:
            index.remove(rng.randrange(100), chain(rng.randrange(number + 1)))
        index.stretches(chain(rng.randrange(number + 1)))
    check(index)
    assert index.stats().evicted > 10_000


def test_a_dropped_slot_is_no_loser(name: str) -> None:
    index = BACKENDS[name](BYTES[name], Clock())
    index.add(1, chain(1))
    index.drop(1)
    for number in range(2, 200):
        index.add(2, chain(number))
    assert index.take_losers() == {2}
    assert index.take_losers() == set()


def test_names_that_take_more_room_than_there_is_cost_everything() -> None:
    index = ArrayIndex(BYTES["arrays"], Clock())
    for number in range(200):
        index.add(number % 3, chain(number))
    keys = index.stats().keys
    index.take_losers()
    evicted = index.stats().evicted
    index.arrays.keep_names()
    assert index.stats().bytes <= BYTES["arrays"]
    assert index.stats().evicted == evicted + keys
    assert index.take_losers() == {0, 1, 2}
    index.add(5, chain(1))
    assert held(index, chain(1)) == CHAIN
    check(index)


@pytest.mark.parametrize("slots", [1000, 4000])
def test_more_and_more_slots_stay_within_the_bound(slots: int) -> None:
    """Sets get wider, and blocks are given up for it."""
    clock = Clock()
    most = 4 << 20
    index = ArrayIndex(most, clock)
    rng = Random(1)
    for number in range(slots):
        clock.now += 1
        for held_by in {number, rng.randrange(number + 1), rng.randrange(number + 1)}:
            index.add(held_by, chain(number % 150))
        assert index.stats().bytes <= most
        assert held(index, chain(number % 150)) >= CHAIN
    check(index)


class LongHistory(RuleBasedStateMachine):
    """The arrays against the reference on a history that grows, collides, reuses slots and overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.index = ArrayIndex(192 << 10, self.clock)
        self.reference = ReferenceIndex()
        self.waiting: set[int] = set()
        self.evicted = 0

    @rule(slot=st.integers(0, 600), number=st.integers(0, 40), count=st.integers(1, 600))
    def add(self, slot: int, number: int, count: int) -> None:
        if slot not in self.waiting:
            # Few low bits, so that hash values have much in common.
            keys = [(number << 40) + block for block in range(count)]
            self.index.add(slot, keys)
            self.reference.add(slot, keys)
            assert self.index.stretches(keys[-100:])[-1].stop == len(keys[-100:]), (
                "the newest stays"
            )

    def forget_what_was_given_up(self) -> None:
        evicted = self.index.stats().evicted
        if evicted == self.evicted:
            return
        self.evicted = evicted
        for key, slots in list(self.reference._slots_of.items()):
            left = {one.slot for one in self.index.stretches([key])}
            assert left <= slots
            for slot in slots - left:
                self.reference.remove(slot, [key])

    @rule(slot=st.integers(0, 600), number=st.integers(0, 40), start=st.integers(0, 600))
    def remove(self, slot: int, number: int, start: int) -> None:
        keys = [(number << 40) + block for block in range(start, start + 50)]
        self.index.remove(slot, keys)
        self.reference.remove(slot, keys)

    @rule(slot=st.integers(0, 600))
    def drop(self, slot: int) -> None:
        if slot not in self.waiting:
            self.waiting.add(slot)
            self.index.drop(slot)
            self.reference.drop(slot)

    @rule()
    def keep_names(self) -> None:
        self.index.arrays.keep_names()

    @rule(budget=st.integers(1, 5000))
    def sweep(self, budget: int) -> None:
        self.waiting -= set(self.index.sweep(budget))

    @rule(number=st.integers(0, 40), seconds=st.floats(0, 100_000))
    def match(self, number: int, seconds: float) -> None:
        self.forget_what_was_given_up()
        self.clock.now += seconds
        keys = [(number << 40) + block for block in range(600)]
        assert sorted(self.index.stretches(keys)) == sorted(self.reference.stretches(keys))

    @invariant()
    def agree(self) -> None:
        self.forget_what_was_given_up()
        check(self.index)
        assert self.index.stats().entries == self.reference.stats().entries
        assert self.index.stats().bytes <= 192 << 10


LongHistory.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=50, deadline=None
)
TestLongHistory = LongHistory.TestCase


def test_steps_fit_the_smallest_index_that_can_be_configured() -> None:
    index = ArrayIndex(array_index.LEAST_BYTES, Clock())
    index.add(1000, range(1 << 17))
    assert index.stats().bytes <= array_index.LEAST_BYTES
    check(index)
