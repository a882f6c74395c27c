"""Ranks that share an index, in doubt, whose engines evict blocks before their children.

Everything is done to the compiled form and to the pure one, which knows of no numbers that are freed
and given out again; both must hold the same, and be in doubt of the same.
"""

from collections.abc import Callable

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.sides import CLEARED, Event, Side, removed, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.blocks.blocks import DEPTH, FREE, FREED, SET, TOP
from warmpath.indexer.engines.event import EngineHash, Tier
from warmpath.indexer.follow.stream_source import SavedRank
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.resolve.change import Spot

EXAMPLES = examples(100)
B = 2
PODS = ("a", "b", "c")
Path = tuple[int, ...]
"""What a block's prefix is made of: a number a block."""

EARLY: list[Path] = [(number,) for number in range(2, 8)]

POD = st.sampled_from(PODS)
PATH = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)


def name(pod: str, path: Path) -> int:
    """Return a block's name; the engine of c gives names of its own."""
    return hash((pod == "c", path)) & ((1 << 64) - 1)


def tokens(path: Path) -> list[int]:
    return [token for one in path for token in (one, one)]


def key(path: Path) -> int:
    return chain(Keyspace("m", B).root(), pack_tokens(tokens(path)), B)[-1]


PARENTS = {
    key(path): key(path[:-1])
    for depth in range(2, 6)
    for number in range(1 << depth)
    for path in [tuple(number >> bit & 1 for bit in range(depth))]
}
"""The key of each block's parent."""


class EvictionInDoubt(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sides = [Side("compiled"), Side("pure")]
        self.are_links_lost = False
        for side in self.sides:
            for pod in PODS:
                side.rank(pod).learn_capacity(6)
                # The first numbers, which sets have too.
                for path in EARLY:
                    side.send(pod, self.stored(pod, path, 0))

    def send(self, pod: str, *events: Event) -> None:
        for side in self.sides:
            side.send(pod, *events)

    def each(self, act: Callable[[Side], None]) -> None:
        for side in self.sides:
            act(side)

    @rule(
        pod=POD, path=PATH, start=st.integers(0, 4), medium=st.sampled_from(["GPU", "GPU", "CPU"])
    )
    def store(self, pod: str, path: Path, start: int, medium: str) -> None:
        start %= len(path)
        self.send(pod, self.stored(pod, path, start, medium))

    def stored(self, pod: str, path: Path, start: int, medium: str = "GPU") -> Event:
        names = [name(pod, path[:end]) for end in range(start + 1, len(path) + 1)]
        parent = name(pod, path[:start]) if start else None
        return stored(names, tokens(path[start:]), parent, B, medium=medium)

    @rule(
        pod=POD,
        paths=st.lists(PATH, min_size=1, max_size=3),
        medium=st.sampled_from(["GPU", "CPU"]),
    )
    def remove(self, pod: str, paths: list[Path], medium: str) -> None:
        self.send(pod, removed([name(pod, path) for path in paths], medium))

    @rule(pod=POD, path=PATH, early=st.sampled_from(EARLY), again=st.booleans())
    def evict_the_parent_and_go_on_behind_the_child(
        self, pod: str, path: Path, early: Path, *, again: bool
    ) -> None:
        for one in PODS:
            self.send(one, removed([name(one, early)]))
        whole = (*path, 0, 1)
        events = [self.stored(pod, whole[:-1], 0), removed([name(pod, path)])]
        if again:
            events.append(self.stored(pod, path, len(path) - 1))
        for event in events:
            self.send(pod, event)
        self.each(lambda side: side.doubt(pod))
        self.send(pod, self.stored(pod, whole, len(whole) - 1))

    @rule(pod=POD)
    def miss_a_batch(self, pod: str) -> None:
        self.each(lambda side: side.lose(pod))

    @rule(pod=POD)
    def doubt(self, pod: str) -> None:
        self.each(lambda side: side.doubt(pod))

    @rule(pod=POD)
    def clear(self, pod: str) -> None:
        self.send(pod, CLEARED)

    @rule(pod=POD)
    def restart_the_router(self, pod: str) -> None:
        def restart(side: Side) -> None:
            saved = msgspec.msgpack.encode(side.rank(pod).save())
            side.ingest.remove(pod, 0)
            sequence = side.sequence[pod, 0]
            side.restore(pod, msgspec.msgpack.decode(saved, type=SavedRank))
            side.sequence[pod, 0] = sequence

        self.each(restart)

    @rule(budget=st.integers(0, 40))
    def tick(self, budget: int) -> None:
        self.each(lambda side: side.ingest.tick(budget))

    @rule()
    def give_numbers_out_again(self) -> None:
        """Do as an index does once many blocks were freed: links to blocks that are gone are lost."""
        index = self.sides[0].index
        assert isinstance(index, ArrayIndex)
        index.arrays.wake()
        self.are_links_lost = True

    @invariant()
    def parts_agree(self) -> None:
        self.each(lambda side: check(side.ingest))

    @invariant()
    def every_parent_is_the_blocks_own(self) -> None:
        index = self.sides[0].index
        assert isinstance(index, ArrayIndex)
        blocks = index.arrays.blocks
        free = set()
        number = int(blocks.state[FREE])
        while number:
            free.add(number)
            number = int(blocks.halves[number, SET])
        for number in range(1, int(blocks.state[TOP])):
            parent = int(blocks.parents[number])
            if blocks.quarters[number, DEPTH] != FREED and parent:
                assert parent not in free
                expected = PARENTS.get(int(blocks.records[number, 0]))
                assert expected is None or int(blocks.records[parent, 0]) == expected

    @invariant()
    def both_forms_hold_the_same_and_doubt_the_same(self) -> None:
        compiled, pure = self.sides
        for pod in PODS:
            one, other = holdings(compiled, pod), holdings(pure, pod)
            if self.are_links_lost:
                for spot, (held, doubted) in one.items():
                    there, doubted_there = other.get(spot, (set(), set()))
                    assert held <= there
                    assert held - doubted <= there - doubted_there
            else:
                assert one == other
                assert compiled.rank(pod).counts() == pure.rank(pod).counts()
                assert compiled.rank(pod).trust.level == pure.rank(pod).trust.level


def holdings(side: Side, pod: str) -> dict[Spot, tuple[set[EngineHash], set[EngineHash]]]:
    """Return the names that each place of a rank holds, and those of them that are in doubt."""
    saved = side.rank(pod).save().resolver.one_by_one()
    return {
        (Tier(one.tier), one.group): (set(one.copies), set(one.doubted))
        for one in saved.holdings
        if one.copies
    }


EvictionInDoubt.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None
)
TestEvictionInDoubt = EvictionInDoubt.TestCase
