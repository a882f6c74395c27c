"""Names that the arrays cannot keep: what they cost, and that they go with their blocks."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest
from tests.indexer.sides import removed, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.array_rank import ArrayState
from warmpath.indexer.compiled.names import words
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.ranks import Ingest

SIZE = 2
EVENT = 64
Words = NDArray[np.uint64]
BYTES = 512 << 10


class Engine:
    """Sends the events that the test orders, in vLLM's form."""

    def __init__(self, ingest: Ingest, pod: str) -> None:
        source = RankSource(pod, 0, "m", vllm.decode, has_replay=False, dialect="vllm")
        self.rank: RankIngest = ingest.add(source)
        self.rank.connected()

    def say(self, *events: dict[str, object]) -> None:
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self.rank.live_many([("", self.rank.batches, payload)])

    def store(self, prompt: int, *, copies: int = 1, chunk: int = 1, other: int = 0) -> None:
        """Store a prompt of its own, with the given chunk size and number of copies."""
        self.say(*[store_of(prompt, chunk, other)] * copies)

    def remove(self, prompt: int, *, chunk: int = 1, other: int = 0) -> None:
        medium = "GPU" if chunk == 1 else "CPU"
        self.say(removed(names_of(prompt, chunk, other), medium))


def store_of(prompt: int, chunk: int = 1, other: int = 0) -> dict[str, object]:
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
    engine = Engine(new_ingest(lambda: ArrayIndex(1 << 24)), "p")
    for prompt in range(much):
        engine.store(prompt, copies=2)
    marked.clear()
    engine.store(much, copies=2)
    # Each name and each key, as it is taken out and as the batch is settled, and again where the tables
    # that they are marked in grow.
    assert sum(marked) <= 2 * 2 * EVENT + 2 * EVENT * (much + 1)
    marked.clear()
    engine.remove(0)
    assert sum(marked) <= 2 * EVENT


def test_names_in_bytes_are_no_odder_than_integers() -> None:
    taken = []
    for digits in (8, 32):
        ingest = new_ingest(lambda: ArrayIndex(1 << 24))
        engine = Engine(ingest, "p")
        for prompt in range(8):
            names = [name.to_bytes(digits, "big") for name in names_of(prompt, 1, 0)]
            engine.say(
                stored(names[:40], [prompt] * (40 * SIZE), None, SIZE),
                stored(names[40:], [prompt] * (24 * SIZE), names[39], SIZE),
                removed(names[60:]),
            )
        check(engine.rank)
        assert not engine.rank.state.save().keys
        taken.append(ingest.index.stats())
    assert taken[0] == taken[1]
    assert taken[0].keys == 8 * 60


def test_odd_names_go_with_the_blocks_that_the_index_gives_up() -> None:
    bound = 4 * BYTES
    index = ArrayIndex(bound, lambda: 0.0)
    ingest = new_ingest(lambda: index)
    idle, busy = Engine(ingest, "idle"), Engine(ingest, "busy")
    for prompt in range(6):
        idle.store(prompt, copies=2)
    for prompt in range(100):
        busy.store(prompt, copies=2)
        assert index.stats().bytes <= bound
        if prompt % 10 == 9:
            check(ingest)
    assert index.stats().evicted
    for engine in (idle, busy):
        state = engine.rank.state
        assert isinstance(state, ArrayState)
        held = sum(map(len, state.held().values()))
        assert len(state.save().one_by_one().keys) == held
    # No more is given up than there is no room for.
    assert index.stats().keys > bound / 1500


def test_copies_of_blocks_that_are_there_keep_within_the_bound() -> None:
    index = ArrayIndex(BYTES, lambda: 0.0)
    engine = Engine(new_ingest(lambda: index), "p")
    for prompt in range(60):
        engine.store(prompt)
    for prompt in range(16, 60):
        engine.remove(prompt)
    engine.say(*map(store_of, range(16)))  # each takes a name more, and no block
    assert index.stats().bytes <= BYTES
    check(engine.rank)


class FullOfOddNames(RuleBasedStateMachine):
    """Two ranks at the bound, whose names have copies, share blocks, and stand for several."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ArrayIndex(BYTES, lambda: 0.0)
        self.ingest = new_ingest(lambda: self.index)
        self.engines = [Engine(self.ingest, pod) for pod in "pq"]
        for engine in self.engines:
            for prompt in range(100, 105):
                engine.store(prompt, copies=2)

    @rule(
        n=st.integers(0, 1),
        first=st.integers(0, 40),
        count=st.integers(1, 8),
        copies=st.integers(1, 3),
        chunk=st.sampled_from([1, 1, 2]),
        other=st.integers(0, 1),
    )
    def store(self, n: int, first: int, count: int, copies: int, chunk: int, other: int) -> None:
        for prompt in range(first, first + count):
            self.engines[n].store(prompt, copies=copies, chunk=chunk, other=other)

    @rule(
        n=st.integers(0, 1),
        first=st.integers(0, 40),
        count=st.integers(1, 4),
        chunk=st.sampled_from([1, 1, 2]),
        other=st.integers(0, 1),
    )
    def remove(self, n: int, first: int, count: int, chunk: int, other: int) -> None:
        for prompt in range(first, first + count):
            self.engines[n].remove(prompt, chunk=chunk, other=other)

    @rule(n=st.integers(0, 1))
    def doubt(self, n: int) -> None:
        self.engines[n].rank.frame_malformed("a test says so")

    @rule(n=st.integers(0, 1))
    def settle(self, n: int) -> None:
        self.engines[n].rank.state.settle()

    @rule(n=st.integers(0, 1))
    def clear(self, n: int) -> None:
        self.engines[n].say({"type": "AllBlocksCleared"})

    @rule(budget=st.integers(1, 5000))
    def tick(self, budget: int) -> None:
        self.ingest.tick(budget)

    @invariant()
    def parts_agree_within_the_bound(self) -> None:
        check(self.ingest)
        assert self.index.stats().bytes <= BYTES


FullOfOddNames.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=30, deadline=None
)
TestFullOfOddNames = FullOfOddNames.TestCase
