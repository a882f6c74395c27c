"""Names that the arrays cannot keep: what they cost, and that they go with their blocks."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.sides import CLEARED, Event, Side, removed, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.array_rank import ArrayState
from warmpath.indexer.compiled.names import words

SIZE = 2
EVENT = 64
Words = NDArray[np.uint64]
BYTES = 512 << 10


def at_bound(most: int = BYTES) -> Side:
    return Side("compiled", ArrayIndex(most, lambda: 0.0))


def store(side: Side, prompt: int, *, pod: str = "p", copies: int = 2, **form: int) -> None:
    """Let a rank store a prompt of its own so many times; `form` is that of `names_of`."""
    side.send(pod, *[store_of(prompt, **form)] * copies)


def remove(side: Side, prompt: int, *, pod: str = "p", chunk: int = 1, other: int = 0) -> None:
    medium = "GPU" if chunk == 1 else "CPU"
    side.send(pod, removed(names_of(prompt, chunk, other), medium))


def store_of(prompt: int, chunk: int = 1, other: int = 0) -> Event:
    medium = "GPU" if chunk == 1 else "CPU"
    names = names_of(prompt, chunk, other)
    return stored(names, [prompt] * (SIZE * EVENT), None, SIZE * chunk, medium=medium)


def names_of(prompt: int, chunk: int, other: int) -> list[int]:
    first = (chunk << 56) + (other << 48) + (prompt << 16) + 1
    return list(range(first, first + EVENT // chunk))


@pytest.mark.parametrize("much", [1, 50])
def test_a_batch_marks_no_more_than_it_names(monkeypatch: pytest.MonkeyPatch, much: int) -> None:
    marked: list[int] = []
    for name in ("add", "discard"):
        real: Callable[[Words, Words], int] = getattr(words, name)

        def count(table: Words, some: Words, real: Callable[[Words, Words], int] = real) -> int:
            marked.append(len(some))
            return real(table, some)

        monkeypatch.setattr(words, name, count)
    side = at_bound(1 << 24)
    for prompt in range(much):
        store(side, prompt)
    marked.clear()
    store(side, much)
    # Each name and each key, as it is taken out and as the batch is settled, and again where the tables
    # that they are marked in grow.
    assert sum(marked) <= 2 * 2 * EVENT + 2 * EVENT * (much + 1)
    marked.clear()
    remove(side, 0)
    assert sum(marked) <= 2 * EVENT


def test_names_in_bytes_are_no_odder_than_integers() -> None:
    taken = []
    for digits in (8, 32):
        side = at_bound(1 << 24)
        for prompt in range(8):
            names = [name.to_bytes(digits, "big") for name in names_of(prompt, 1, 0)]
            side.send(
                "p",
                stored(names[:40], [prompt] * (40 * SIZE), None, SIZE),
                stored(names[40:], [prompt] * (24 * SIZE), names[39], SIZE),
                removed(names[60:]),
            )
        check(side.rank("p"))
        assert not side.rank("p").state.save().keys
        taken.append(side.index.stats())
    assert taken[0] == taken[1]
    assert taken[0].keys == 8 * 60


def test_odd_names_go_with_the_blocks_that_the_index_gives_up() -> None:
    bound = 4 * BYTES
    side = at_bound(bound)
    for prompt in range(6):
        store(side, prompt, pod="idle")
    for prompt in range(100):
        store(side, prompt, pod="busy")
        assert side.index.stats().bytes <= bound
        if prompt % 10 == 9:
            check(side.ingest)
    assert side.index.stats().evicted
    for pod in ("idle", "busy"):
        state = side.rank(pod).state
        assert isinstance(state, ArrayState)
        held = sum(map(len, state.held().values()))
        assert len(state.save().one_by_one().keys) == held
    # No more is given up than there is no room for.
    assert side.index.stats().keys > bound / 1500


def test_copies_of_blocks_that_are_there_keep_within_the_bound() -> None:
    side = at_bound()
    for prompt in range(60):
        store(side, prompt, copies=1)
    for prompt in range(16, 60):
        remove(side, prompt)
    side.send("p", *map(store_of, range(16)))  # each takes a name more, and no block
    assert side.index.stats().bytes <= BYTES
    check(side.rank("p"))


POD = st.sampled_from("pq")
CHUNK = st.sampled_from([1, 1, 2])
PROMPTS = st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda one: range(one[0], sum(one)))


class FullOfOddNames(RuleBasedStateMachine):
    """Two ranks at the bound, whose names have copies, share blocks, and stand for several."""

    def __init__(self) -> None:
        super().__init__()
        self.side = at_bound()
        for pod in "pq":
            for prompt in range(100, 105):
                store(self.side, prompt, pod=pod)

    @rule(pod=POD, prompts=PROMPTS, copies=st.integers(1, 3), chunk=CHUNK, other=st.integers(0, 1))
    def store(self, pod: str, prompts: range, copies: int, chunk: int, other: int) -> None:
        for prompt in prompts:
            store(self.side, prompt, pod=pod, copies=copies, chunk=chunk, other=other)

    @rule(pod=POD, prompts=PROMPTS, chunk=CHUNK, other=st.integers(0, 1))
    def remove(self, pod: str, prompts: range, chunk: int, other: int) -> None:
        for prompt in prompts:
            remove(self.side, prompt, pod=pod, chunk=chunk, other=other)

    @rule(pod=POD)
    def doubt(self, pod: str) -> None:
        self.side.rank(pod).frame_malformed("a test says so")

    @rule(pod=POD)
    def settle(self, pod: str) -> None:
        self.side.rank(pod).state.settle()

    @rule(pod=POD)
    def clear(self, pod: str) -> None:
        self.side.send(pod, CLEARED)

    @rule(budget=st.integers(1, 5000))
    def tick(self, budget: int) -> None:
        self.side.ingest.tick(budget)

    @invariant()
    def parts_agree_within_the_bound(self) -> None:
        check(self.side.ingest)
        assert self.side.index.stats().bytes <= BYTES


FullOfOddNames.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestFullOfOddNames = FullOfOddNames.TestCase
