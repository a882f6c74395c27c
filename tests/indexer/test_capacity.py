"""An engine that announces hits as stores too: what its cache cannot hold is seen, and given up."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.examples import examples
from tests.indexer import sides, trtllm_answers
from tests.indexer.consistent import check
from tests.indexer.engine_model import BLOCK, EngineModel
from tests.indexer.followed import following, held
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.sides import Event, Side, removed
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import trtllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.stream_source import REPEATED, RankIngest
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import DRIFTED, Level, Trust

CAPACITY = 8


@pytest.fixture(params=["compiled", "pure"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored(names: Iterable[int], tokens: Iterable[int], **changes: object) -> Event:
    return sides.stored(names, tokens, None, BLOCK) | changes


def together(*batches: list[Event]) -> Callable[[Side], None]:
    payloads = [msgspec.msgpack.encode([0.0, events, 0]) for events in batches]
    return lambda side: side.frames("p", payloads)


def learn(capacity: int) -> Callable[[Side], None]:
    return lambda side: side.rank("p").learn_capacity(capacity)


def lose(side: Side) -> None:
    side.lose("p")


Check = tuple[Callable[[RankIngest], object], object]
"""What is asked of a rank, and the answer that is expected."""


def uses(blocks: int) -> Check:
    return RankIngest.blocks_in_use, blocks


def because(reason: str) -> Check:
    return lambda rank: (rank.trust.level, rank.trust.reason), (Level.DEGRADED, reason)


def counts(**expected: int) -> Check:
    return lambda rank: {name: rank.counts()[name] for name in expected}, expected


def unknown(removals: int) -> Check:
    return lambda rank: rank.state.counts.unknown_removals, removals


def holds_nothing(group: int) -> Check:
    return lambda rank: rank.state.held().get((Tier.GPU, group), set()), set()


ONE, TWO = stored([1], [1, 1]), stored([1, 2], [1, 1, 2, 2])
THREE_MORE = stored([3, 4, 5], [3, 3, 4, 4, 5, 5])
FULL: dict[str, object] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
WINDOW: dict[str, object] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 2}  # fmt: skip
STATE: dict[str, object] = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
STATES = stored([2], [1, 1, 1, 1], block_size=4, **STATE), stored([1], [1, 1], **STATE)
"""A block, and a part of it."""

STORIES: dict[str, tuple[int, list[Any]]] = {
    # What cannot be there of the five is block 1: a hit that was told as a store, and is gone.
    "what was removed since it was last announced is given up": (4, [[TWO], [ONE], [removed([1])], uses(2), [THREE_MORE], Level.DEGRADED, uses(4), unknown(0), [removed([1])], unknown(1)]),
    "more than fits is seen after each batch of those that arrive together": (
        4, [[TWO], together([removed([9])], [removed([9])]), together([THREE_MORE], [removed([5]), removed([4])]), because(f"{DRIFTED}: 5 of 4"), counts(drifts=1)],
    ),
    # What is plain is taken by more at a time each time. Block 5 is as many as it has: whatever was not seen since is gone.
    "a rank heals after the batch that turns its cache over": (
        3, [
            [TWO], lose, [removed([2])], Level.DEGRADED,
            together(*[[removed([99])]] * 3, [stored([3, 4], [3, 3, 4, 4])], [stored([5], [5, 5])], [stored([6], [6, 6], parent_block_hash=77)]),
            because("a stored block's parent is unknown: an event was missed"),
        ],
    ),
    "a capacity that is not known is no bound": (0, [*[[TWO]] * 50, Level.EXACT, uses(100)]),
    "a capacity that is learned later bounds what is there then": (0, [*[[ONE]] * 5, learn(4), [stored([2], [2, 2])], Level.DEGRADED]),
    "every copy of one content takes a block and slower tiers take none": (
        4, [*[[ONE, ONE | {"medium": "CPU"}]] * 4, uses(4), Level.EXACT, [removed([1]), removed([1])], uses(2), [stored([2, 3, 4], [2, 2, 3, 3, 4, 4])], because(f"{DRIFTED}: 5 of 4")],
    ),
    # A full report names blocks of a window that lie before it, which no cache has.
    "the groups of a hybrid model share one pool": (4, [[TWO | FULL, TWO | WINDOW], uses(4), Level.EXACT, [stored([3], [3, 3], **FULL)], Level.DEGRADED, holds_nothing(1), uses(3)]),
    "a block that is known by its parts too is not counted twice": (2, [[*STATES], [stored([1, 2], [1, 1, 1, 1], **FULL)], [*reversed(STATES)], Level.EXACT, uses(2)]),
    # Both are there, however often, until one is removed.
    "what may have been a hit is not exact once it was removed": (
        0, [
            [TWO], [TWO], Level.EXACT, together([removed([2])], [removed([9])]), because(REPEATED),
            [stored([2], [2, 2], parent_block_hash=1)], Level.EXACT, [removed([1, 2]), removed([1, 2]), removed([2])], Level.EXACT, holds_nothing(0),
        ],
    ),
    "a window that was announced twice may not hold what lies before it": (0, [[TWO | WINDOW, removed([1], group_idx=1)], Level.EXACT, [TWO | WINDOW], because(REPEATED)]),
}  # fmt: skip
"""A cache's capacity, then batches of events, and what is so after them."""


@pytest.mark.parametrize(("capacity", "story"), STORIES.values(), ids=STORIES)
def test_stories(form: str, capacity: int, story: list[Any]) -> None:
    side = Side(form, capacity=capacity)
    for step in story:
        if isinstance(step, list):
            side.send("p", *step)
        elif isinstance(step, Level):
            assert side.rank("p").trust.level is step
        elif isinstance(step, tuple):
            look, expected = step
            assert look(side.rank("p")) == expected
        else:
            step(side)


def report(rank: RankIngest, engine: EngineModel, prompt: tuple[int, ...]) -> None:
    """Let the engine announce a prompt's blocks, which are all hits, as stored."""
    said = engine.report(prompt)
    assert said
    rank.live("", *said)


def drifted(form: str, prompt: tuple[int, ...]) -> tuple[RankIngest, EngineModel]:
    """Return a rank and its engine, which announced a prompt's hits until they were too many."""
    rank, engine = Side(form, capacity=CAPACITY).rank("p"), EngineModel(capacity=CAPACITY)
    rank.live("", *engine.store(prompt))
    while rank.trust.level is Level.EXACT:
        report(rank, engine, prompt)
    assert rank.trust.reason.startswith(DRIFTED)
    return rank, engine


def test_hits_announced_as_stores_degrade_the_rank_and_nothing_stays_that_is_gone(
    form: str,
) -> None:
    rank, engine = drifted(form, (0, 1, 2, 3, 4, 5))
    assert rank.trust == Trust(Level.DEGRADED, f"{DRIFTED}: 9 of 8", 0.0)
    assert rank.counts()["drifts"] == 1
    assert held(rank) == engine.held()
    # Each block has one copy, so one removal is enough.
    for which in range(20, 23):
        rank.live("", *engine.store((which,) * 6))
    assert held(rank) <= engine.held()
    assert rank.blocks_in_use() <= CAPACITY


def test_a_rank_that_drifted_heals_once_its_cache_has_turned_over(form: str) -> None:
    prompt = (0, 1, 2, 3)
    rank, engine = drifted(form, prompt)
    # Hits that are announced again give no block away, so they heal nothing.
    for _ in range(2 * CAPACITY):
        report(rank, engine, prompt)
        assert rank.trust.level is Level.DEGRADED
    for number in range(10, 10 + CAPACITY):
        rank.live("", *engine.store((number, number)))
    assert rank.trust.level is Level.EXACT
    assert held(rank) == engine.held()


def test_a_clear_heals_a_rank_that_drifted(form: str) -> None:
    rank, engine = drifted(form, (0, 1))
    rank.live("", *engine.clear())
    assert rank.trust.level is Level.EXACT


def test_windows_with_pools_of_their_own_are_not_summed() -> None:
    rank = following(MemoryIndex, decode=trtllm.Codec(2), dialect="", is_queue=True)
    created = {"type": "created", "num_blocks_per_cache_level": [2, 0]}
    both = [trtllm_answers.stored(None, trtllm_answers.block(n, n, n)) for n in (1, 2)]
    first = 0
    for data in (created, *both):
        for window in (8, 64):
            [event] = trtllm.split(trtllm_answers.answer(data, first=first, window=window))
            rank.live("", first, event)
            first += 1
    assert rank.capacity == 2
    assert rank.blocks_in_use() is None
    assert len(rank.state.held()) == 2
    assert rank.trust.level is Level.EXACT


def begun_again(form: str, capacity: int, *events: Event) -> Side:
    """Return a side on which another process goes on behind these events, before it connects."""
    before = Side(form, capacity=capacity)
    before.send("p", *events)
    side = Side(form, capacity=capacity)
    side.rank("p").disconnected()
    side.rank("p").restore(before.saved("p"))
    assert side.rank("p").blocks_in_use() == before.rank("p").blocks_in_use()
    return side


def test_a_router_that_restarts_still_knows_what_is_not_certain(form: str) -> None:
    rank = begun_again(form, 4, TWO, ONE, removed([1])).rank("p")
    assert rank.blocks_in_use() == 2
    rank.state.give_up_excess()
    assert rank.state.blocks_in_use() == 1


def test_a_size_that_is_learned_tells_of_hits_that_were_announced(form: str) -> None:
    events = ONE, ONE, removed([1])
    side = Side(form)
    side.send("p", *events)
    assert side.rank("p").trust.reason == REPEATED
    assert begun_again(form, 0, *events).rank("p").state.may_show_hits()
    side.rank("p").learn_capacity(4)
    assert side.rank("p").trust.level is Level.EXACT


@pytest.mark.parametrize("kind", ["sliding_window", "mamba"])
def test_a_block_behind_a_window_proves_none_before_the_window(kind: str, form: str) -> None:
    side = Side(form, capacity=4)
    window = {"kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": 3}
    side.send("p", stored([1, 2, 3], [1, 1, 2, 2, 3, 3], **window))
    (first,) = chain(Keyspace(model="m", block_size=BLOCK).root(), pack_tokens([1, 1]), BLOCK)
    assert first in held(side.rank("p"))
    side.lose("p")  # the removal of block 1
    side.send("p", stored([4], [4, 4], parent_block_hash=3, **window))
    for gone in range(2, 9):
        side.send("p", removed([gone]), stored([gone + 3], [gone + 3] * 2, **window))
    assert side.rank("p").trust.level is Level.EXACT
    assert first not in held(side.rank("p"))


class Drifting(RuleBasedStateMachine):
    """One engine whose requests may ask for full reports, and a rank that gets all of its events.

    A capacity of 0: the size of the cache is not known.
    """

    def __init__(self, form: str, capacity: int) -> None:
        super().__init__()
        self.engine = EngineModel(capacity=CAPACITY)
        self.capacity = capacity
        self.rank = Side(form, capacity=capacity).rank("p")
        self.is_sound = True
        """Whether no full report was given since the rank last gave up what was too much."""

    def hear(self, said: tuple[int, bytes] | None) -> None:
        if said is None:
            return
        drifts = self.rank.drifts
        self.rank.live_many([("", *said)])
        if self.rank.drifts > drifts:
            self.is_sound = True
            assert self.rank.trust.level is Level.DEGRADED

    @rule(tokens=st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple))
    def store(self, tokens: tuple[int, ...]) -> None:
        self.hear(self.engine.store(tokens))

    @rule(tokens=st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple))
    def report(self, tokens: tuple[int, ...]) -> None:
        self.is_sound = False
        self.hear(self.engine.report(tokens[: len(tokens) // BLOCK * BLOCK]))

    @rule(which=st.integers(0, 30))
    def evict(self, which: int) -> None:
        self.hear(self.engine.evict(which))

    @rule(which=st.integers(0, 30))
    def hit_in_silence(self, which: int) -> None:
        self.engine.touch(which)

    @rule()
    def clear(self) -> None:
        self.hear(self.engine.clear())
        self.is_sound = True

    @invariant()
    def parts_agree(self) -> None:
        check(self.rank)

    @invariant()
    def it_shows_no_more_than_fits(self) -> None:
        assert not self.capacity or self.rank.blocks_in_use() <= CAPACITY

    @invariant()
    def nothing_is_shown_that_is_gone(self) -> None:
        is_exact = not self.capacity and self.rank.trust.level is Level.EXACT
        if self.is_sound or is_exact:
            assert held(self.rank) <= self.engine.held()

    @invariant()
    def without_a_report_it_is_exact(self) -> None:
        if self.engine.sequence >= 0 and not self.rank.drifts and self.is_sound:
            trust = self.rank.trust
            assert trust.level is Level.EXACT or (not self.capacity and trust.reason == REPEATED)
            assert held(self.rank) == self.engine.held()


@pytest.mark.random
@pytest.mark.parametrize("capacity", [CAPACITY, 0])
def test_what_is_exact_is_there_whatever_the_engine_reports(form: str, capacity: int) -> None:
    run_state_machine_as_test(
        lambda: Drifting(form, capacity),
        settings=settings(max_examples=examples(150), stateful_step_count=60),
    )


def test_a_reader_never_sees_the_blocks_in_use_between_two_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers are made in another thread, perhaps while a rank's blocks come into doubt."""
    side = Side("compiled")
    rank = side.rank("p")
    side.send("p", stored([1], [0] * BLOCK))
    for name in range(2, 40):  # several names a block, which are kept apart from plain ones
        side.send("p", stored([name], [name % 7] * BLOCK))
    before = rank.blocks_in_use()
    seen: list[int | None] = []
    real = ArrayIndex.add

    def looking(index: ArrayIndex, *args: Any) -> None:
        seen.append(rank.blocks_in_use())
        real(index, *args)

    monkeypatch.setattr(ArrayIndex, "add", looking)
    rank.missed("some batches are lost")
    assert before == 39
    assert seen
    assert set(seen) == {before}
    assert rank.blocks_in_use() == 0
