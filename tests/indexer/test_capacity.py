"""An engine that announces hits as stores too: what its cache cannot hold is seen, and given up."""

from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.indexer import sides
from tests.indexer.consistent import check
from tests.indexer.engine_model import BLOCK, EngineModel
from tests.indexer.followed import new_ingest
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import trtllm, vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import REPEATED, RankIngest, SavedRank
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import DRIFTED, Level

CAPACITY = 8


@pytest.fixture(params=[ArrayIndex, MemoryIndex])
def index(request: pytest.FixtureRequest) -> type[Index]:
    kind: type[Index] = request.param
    return kind


def follow(index: Callable[[], Index] = ArrayIndex, **changes: object) -> RankIngest:
    ingest = new_ingest(index)
    fields = {
        "rank": 0, "model": "m", "decode": vllm.decode, "has_replay": False, "dialect": "vllm",
        "capacity": CAPACITY,
    } | changes  # fmt: skip
    rank = ingest.add(RankSource("p", **fields))  # type: ignore[arg-type]
    rank.connected()
    return rank


def held(rank: RankIngest) -> set[int]:
    return rank.state.held().get((Tier.GPU, 0), set())


def stored(names: Iterable[int], tokens: Iterable[int], **changes: object) -> dict[str, object]:
    return sides.stored(names, tokens, None, BLOCK) | changes


def removed(*names: int, **changes: object) -> dict[str, object]:
    return sides.removed(names) | changes


class Said:
    """A rank, and batches that are made for it by hand."""

    def __init__(self, rank: RankIngest) -> None:
        self.rank = rank
        self.sequence = -1

    def __call__(self, *events: dict[str, object]) -> None:
        self.together([events])

    def together(self, batches: Iterable[Iterable[dict[str, object]]]) -> None:
        frames = []
        for events in batches:
            self.sequence += 1
            payload = msgspec.msgpack.encode([0.0, list(events), 0])
            frames.append(("", self.sequence, payload))
        self.rank.live_many(frames)


Check = Callable[[Said], None]


def together(*batches: list[dict[str, object]]) -> Check:
    return methodcaller("together", batches)


def uses(blocks: int) -> Check:
    def check_blocks(say: Said) -> None:
        assert say.rank.blocks_in_use() == blocks

    return check_blocks


def because(reason: str) -> Check:
    def check_reason(say: Said) -> None:
        assert say.rank.trust.level is Level.DEGRADED
        assert say.rank.trust.reason == reason

    return check_reason


def counts(**expected: int) -> Check:
    def check_counts(say: Said) -> None:
        counted = say.rank.counts() | {"unknown_removals": say.rank.state.counts.unknown_removals}
        assert {name: counted[name] for name in expected} == expected

    return check_counts


def learn(capacity: int) -> Check:
    return lambda say: say.rank.learn_capacity(capacity)


def lose(say: Said) -> None:
    say.sequence += 1


def nothing_is_held(say: Said) -> None:
    assert held(say.rank) == set()


def the_window_is_empty(say: Said) -> None:
    assert say.rank.state.held()[Tier.GPU, 1] == set()


ONE, TWO = stored([1], [1, 1]), stored([1, 2], [1, 1, 2, 2])
THREE_MORE = stored([3, 4, 5], [3, 3, 4, 4, 5, 5])
FULL: dict[str, object] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
WINDOW: dict[str, object] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 2}  # fmt: skip
STATE: dict[str, object] = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
STATES = stored([2], [1, 1, 1, 1], block_size=4, **STATE), stored([1], [1, 1], **STATE)
"""A block, and a part of it."""

STORIES: dict[str, tuple[int, list[Any]]] = {
    # What cannot be there of the five is block 1: a hit that was told as a store, and is gone.
    "what was removed since it was last announced is given up": (4, [[TWO], [ONE], [removed(1)], uses(2), [THREE_MORE], Level.DEGRADED, uses(4), counts(unknown_removals=0), [removed(1)], counts(unknown_removals=1)]),
    "more than fits is seen after each batch of those that arrive together": (
        4, [[TWO], together([removed(9)], [removed(9)]), together([THREE_MORE], [removed(5), removed(4)]), because(f"{DRIFTED}: 5 of 4"), counts(drifts=1)],
    ),
    # What is plain is taken by more at a time each time. Block 5 is as many as it has: whatever was not seen since is gone.
    "a rank heals after the batch that turns its cache over": (
        3, [
            [TWO], lose, [removed(2)], Level.DEGRADED,
            together(*[[removed(99)]] * 3, [stored([3, 4], [3, 3, 4, 4])], [stored([5], [5, 5])], [stored([6], [6, 6], parent_block_hash=77)]),
            because("a stored block's parent is unknown: an event was missed"),
        ],
    ),
    "a capacity that is not known is no bound": (0, [*[[TWO]] * 50, Level.EXACT, uses(100)]),
    "a capacity that is learned later bounds what is there then": (0, [*[[ONE]] * 5, learn(4), [stored([2], [2, 2])], Level.DEGRADED]),
    "every copy of one content takes a block and slower tiers take none": (
        4, [*[[ONE, ONE | {"medium": "CPU"}]] * 4, uses(4), Level.EXACT, [removed(1), removed(1)], uses(2), [stored([2, 3, 4], [2, 2, 3, 3, 4, 4])], because(f"{DRIFTED}: 5 of 4")],
    ),
    # A full report names blocks of a window that lie before it, which no cache has.
    "the groups of a hybrid model share one pool": (4, [[TWO | FULL, TWO | WINDOW], uses(4), Level.EXACT, [stored([3], [3, 3], **FULL)], Level.DEGRADED, the_window_is_empty, uses(3)]),
    "a block that is known by its parts too is not counted twice": (2, [[*STATES], [stored([1, 2], [1, 1, 1, 1], **FULL)], [*reversed(STATES)], Level.EXACT, uses(2)]),
    # Both are there, however often, until one is removed.
    "what may have been a hit is not exact once it was removed": (
        0, [
            [TWO], [TWO], Level.EXACT, together([removed(2)], [removed(9)]), because(REPEATED),
            [stored([2], [2, 2], parent_block_hash=1)], Level.EXACT, [removed(1, 2), removed(1, 2), removed(2)], Level.EXACT, nothing_is_held,
        ],
    ),
    "a window that was announced twice may not hold what lies before it": (0, [[TWO | WINDOW, removed(1, group_idx=1)], Level.EXACT, [TWO | WINDOW], because(REPEATED)]),
}  # fmt: skip
"""A cache's capacity, then batches of events, and what is so after them."""


@pytest.mark.parametrize(("capacity", "story"), STORIES.values(), ids=STORIES)
def test_stories(index: type[Index], capacity: int, story: list[Any]) -> None:
    say = Said(follow(index, capacity=capacity))
    for step in story:
        if isinstance(step, list):
            say(*step)
        elif isinstance(step, Level):
            assert say.rank.trust.level is step
        else:
            step(say)


def test_hits_announced_as_stores_degrade_the_rank_and_nothing_stays_that_is_gone(
    index: type[Index],
) -> None:
    rank, engine = follow(index), EngineModel(capacity=CAPACITY)
    prompt = (0, 1, 2, 3, 4, 5)
    rank.live("", *engine.store(prompt))
    for _ in range(2):
        report = engine.report(prompt)
        assert report
        rank.live("", *report)
    assert rank.trust.level is Level.DEGRADED
    assert rank.trust.reason == f"{DRIFTED}: 9 of 8"
    assert rank.counts()["drifts"] == 1
    assert held(rank) == engine.held()
    # Each block has one copy, so one removal is enough.
    for which in range(20, 23):
        rank.live("", *engine.store((which,) * 6))
    assert held(rank) <= engine.held()
    assert rank.blocks_in_use() <= CAPACITY


def test_a_rank_that_drifted_heals_once_its_cache_has_turned_over(index: type[Index]) -> None:
    rank, engine = follow(index), EngineModel(capacity=CAPACITY)
    prompt = (0, 1, 2, 3)
    rank.live("", *engine.store(prompt))
    while rank.trust.level is Level.EXACT:
        report = engine.report(prompt)
        assert report
        rank.live("", *report)
    assert rank.trust.reason.startswith(DRIFTED)
    # Hits that are announced again give no block away, so they heal nothing.
    for _ in range(2 * CAPACITY):
        report = engine.report(prompt)
        assert report
        rank.live("", *report)
        assert rank.trust.level is Level.DEGRADED
    for number in range(10, 10 + CAPACITY):
        rank.live("", *engine.store((number, number)))
    assert rank.trust.level is Level.EXACT
    assert held(rank) == engine.held()


def test_a_clear_heals_a_rank_that_drifted(index: type[Index]) -> None:
    rank, engine = follow(index), EngineModel(capacity=CAPACITY)
    rank.live("", *engine.store((0, 1)))
    while rank.trust.level is Level.EXACT:
        report = engine.report((0, 1))
        assert report
        rank.live("", *report)
    rank.live("", *engine.clear())
    assert rank.trust.level is Level.EXACT


def test_windows_with_pools_of_their_own_are_not_summed() -> None:
    rank = follow(MemoryIndex, decode=trtllm.Codec(2), dialect="", capacity=0, is_queue=True)
    events = (
        ({"type": "created", "num_blocks_per_cache_level": [2, 0]}, 8),
        ({"type": "created", "num_blocks_per_cache_level": [2, 0]}, 64),
        *((store_of(number), window) for number in (1, 2) for window in (8, 64)),
    )
    for number, (data, window) in enumerate(events):
        event = {"event_id": number, "data": data, "window_size": window}
        rank.live("", number, msgspec.json.encode(event))
    assert rank.capacity == 2
    assert rank.blocks_in_use() is None
    assert len(rank.state.held()) == 2
    assert rank.trust.level is Level.EXACT


def store_of(number: int) -> dict[str, object]:
    tokens = [{"type": "unique_token", "token_id": number, "token_extra_id": 0}] * 2
    block = {
        "type": "stored_block", "block_hash": number, "tokens": tokens, "cache_level": 0,
        "priority": 35,
    }  # fmt: skip
    return {"type": "stored", "parent_hash": None, "blocks": [block]}


def test_a_router_that_restarts_still_knows_what_is_not_certain(index: type[Index]) -> None:
    before = follow(index, capacity=4)
    say = Said(before)
    say(stored([1, 2], [1, 1, 2, 2]))
    say(stored([1], [1, 1]))
    say(removed(1))
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(before.save()), type=SavedRank)
    rank = follow(index, capacity=4)
    rank.disconnected()
    rank.restore(saved)
    assert rank.blocks_in_use() == before.blocks_in_use() == 2
    rank.state.give_up_excess()
    assert rank.state.blocks_in_use() == 1


def test_a_size_that_is_learned_tells_of_hits_that_were_announced(index: type[Index]) -> None:
    rank = follow(index, capacity=0)
    say = Said(rank)
    say(stored([1], [1, 1]), stored([1], [1, 1]), removed(1))
    assert rank.trust.reason == REPEATED
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(rank.save()), type=SavedRank)
    later = follow(index, capacity=0)
    later.disconnected()
    later.restore(saved)
    assert later.state.may_show_hits()
    rank.learn_capacity(4)
    assert rank.trust.level is Level.EXACT


@pytest.mark.parametrize("kind", ["sliding_window", "mamba"])
def test_a_block_behind_a_window_proves_none_before_the_window(
    kind: str, index: type[Index]
) -> None:
    rank = follow(index, capacity=4)
    say = Said(rank)
    window = {"kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": 3}
    say(stored([1, 2, 3], [1, 1, 2, 2, 3, 3], **window))
    (first,) = chain(Keyspace(model="m", block_size=BLOCK).root(), pack_tokens([1, 1]), BLOCK)
    assert first in held(rank)
    say.sequence += 1  # the removal of block 1 is lost
    say(stored([4], [4, 4], parent_block_hash=3, **window))
    for gone in range(2, 9):
        say(removed(gone), stored([gone + 3], [gone + 3] * 2, **window))
    assert rank.trust.level is Level.EXACT
    assert first not in held(rank)


class Drifting(RuleBasedStateMachine):
    """One engine whose requests may ask for full reports, and a rank that gets all of its events."""

    index: Callable[[], Index] = ArrayIndex
    capacity = CAPACITY

    def __init__(self) -> None:
        super().__init__()
        self.engine = EngineModel(capacity=CAPACITY)
        self.rank = follow(type(self).index, capacity=self.capacity)
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

    def is_called_exact(self) -> bool:
        trust = self.rank.trust
        return trust.level is Level.EXACT or (not self.capacity and trust.reason == REPEATED)

    @invariant()
    def parts_agree(self) -> None:
        check(self.rank)

    @invariant()
    def it_shows_no_more_than_fits(self) -> None:
        assert not self.capacity or self.rank.blocks_in_use() <= CAPACITY

    @invariant()
    def nothing_is_shown_that_is_gone(self) -> None:
        if self.is_sound:
            assert held(self.rank) <= self.engine.held()

    @invariant()
    def nothing_is_shown_exact_that_is_gone(self) -> None:
        if not self.capacity and self.rank.trust.level is Level.EXACT:
            assert held(self.rank) <= self.engine.held()

    @invariant()
    def without_a_report_it_is_exact(self) -> None:
        if self.engine.sequence >= 0 and not self.rank.drifts and self.is_sound:
            assert self.is_called_exact()
            assert held(self.rank) == self.engine.held()


class DriftingInPurePython(Drifting):
    """The same where Numba cannot be had."""

    index = MemoryIndex


class DriftingUnbounded(Drifting):
    """The same without a known size of the cache."""

    capacity = 0


class DriftingUnboundedInPurePython(DriftingInPurePython):
    """The same where Numba cannot be had either."""

    capacity = 0


PROFILE = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
Drifting.TestCase.settings = PROFILE
DriftingInPurePython.TestCase.settings = PROFILE
TestDrifting = Drifting.TestCase
TestDriftingInPurePython = DriftingInPurePython.TestCase
DriftingUnbounded.TestCase.settings = PROFILE
DriftingUnboundedInPurePython.TestCase.settings = PROFILE
TestDriftingUnbounded = DriftingUnbounded.TestCase
TestDriftingUnboundedInPurePython = DriftingUnboundedInPurePython.TestCase


def test_a_reader_never_sees_the_blocks_in_use_between_two_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers are made in another thread, perhaps while a rank's blocks come into doubt."""
    rank = follow(capacity=0)
    say = Said(rank)
    say(stored([1], [0] * BLOCK))
    for name in range(2, 40):  # several names a block, which are kept apart from plain ones
        say(stored([name], [name % 7] * BLOCK))
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
