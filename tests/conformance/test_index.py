"""One suite for every backend of the index."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.conformance.reference_index import ReferenceIndex
from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.index.contract import Index, Stretch
from warmpath.indexer.keys.key import Chain, pack_words

BACKENDS: dict[str, Callable[[], Index]] = {
    "reference": ReferenceIndex,
    "memory": MemoryIndex,
    "arrays": ArrayIndex,
}


@pytest.fixture(params=BACKENDS)
def index(request: pytest.FixtureRequest) -> Index:
    return BACKENDS[request.param]()


def held(index: Index, keys: list[int]) -> list[Stretch]:
    return sorted(index.stretches(keys), key=lambda one: (one.start, one.slot))


@pytest.mark.parametrize("extras", [(), (None, b"image")])
def test_a_prompt_is_matched_by_its_chain(index: Index, extras: tuple[bytes | None, ...]) -> None:
    chain = Chain(99, bytes(range(200)), 3, 16, extras)
    keys = chain.keys()
    assert len(keys) == 16
    index.add(7, keys[:5])
    index.add(8, keys[:9])
    index.add(9, keys[4:6])
    assert sorted(index.match(chain)) == [Stretch(7, 0, 5), Stretch(8, 0, 9), Stretch(9, 4, 6)]


def test_a_long_prompt_is_matched_to_its_end(index: Index) -> None:
    chain = Chain(1, bytes(4 * 16 * 1000), 16, 1000)
    keys = chain.keys()
    index.add(1, keys)
    index.add(2, keys[:700])
    assert sorted(index.match(chain)) == [Stretch(1, 0, 1000), Stretch(2, 0, 700)]
    assert sorted(index.match(chain, leading=True)) == [Stretch(1, 0, 1000), Stretch(2, 0, 700)]


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("hole", [1, 63, 64, 65, 700])
def test_what_is_held_before_a_hole_is_found_where_no_more_is_asked(
    index: Index, hole: int, is_made: bool
) -> None:
    chain = Chain(1, bytes(4 * 16 * 1000), 16, 1000)
    keys = chain.keys()
    if is_made:
        chain = msgspec.structs.replace(chain, made=pack_words(keys))
    index.add(1, keys[:hole])
    index.add(2, keys[: hole // 2])
    index.add(2, keys[hole + 1 :])
    found = {(one.slot, one.start, one.stop) for one in index.match(chain, leading=True)}
    leading = {(slot, 0, stop) for slot, stop in ((1, hole), (2, hole // 2)) if stop}
    assert leading <= found <= leading | {(2, hole + 1, 1000)}


def test_more_slots_than_a_word_has_bits(index: Index) -> None:
    for slot in range(0, 1000, 37):
        index.add(slot, list(range(slot + 1)))
    assert held(index, list(range(1000))) == [Stretch(n, 0, n + 1) for n in range(0, 1000, 37)]
    check(index)


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
        first, *others = (held(backend, keys) for backend in self.backends)
        assert all(other == first for other in others)

    @invariant()
    def agree(self) -> None:
        for backend in self.backends:
            check(backend)
        assert len({backend.stats().entries for backend in self.backends}) == 1


EveryBackendAgrees.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)
TestEveryBackendAgrees = EveryBackendAgrees.TestCase
