"""The resolver finds segments: for every key that is held, the segment of its whole chain."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.examples import examples
from tests.indexer.consistent import check
from warmpath.indexer.engines.event import Cleared, Event, Moved, Removed, Stored, Tier, name_of
from warmpath.indexer.keys import segment
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.keys.segment import SEGMENT, Segments
from warmpath.indexer.resolve.change import Added, Change, Emptied, Gone
from warmpath.indexer.resolve.resolver import Resolver
from warmpath.indexer.resolve.saved import SavedResolver

BLOCK = 2
SHORT = 3
"""Blocks of a segment here."""
CHUNK = 2
"""Blocks of a chunk of the offload tier."""
ROOT = Keyspace(model="m", block_size=BLOCK).root()

# Prompts that part inside a segment, at its end, and at once.
PROMPTS = [
    list(range(20)),
    [*range(8), *range(100, 112)],
    [*range(12), *range(200, 208)],
    list(range(300, 320)),
]
TRUE_SEGMENT = {
    key: keys[position - position % SHORT]
    for keys in (chain(ROOT, pack_tokens(tokens), BLOCK) for tokens in PROMPTS)
    for position, key in enumerate(keys)
}
BLOCKS = len(PROMPTS[0]) // BLOCK

GROUPS = {0: "full_attention", 1: "sliding_window", 2: "full_attention"}


def stored(prompt: int, first: int, last: int, ratio: int, tier: Tier, group: int) -> Stored:
    """Store units `first` to `last` of a prompt, each of `ratio` blocks."""
    tokens = PROMPTS[prompt]
    size = ratio * BLOCK

    def name(unit: int) -> int:
        return name_of(repr((ratio, tokens[: (unit + 1) * size])).encode())

    return Stored(
        tuple(name(unit) for unit in range(first, last + 1)),
        name(first - 1) if first else None,
        pack_tokens(tokens[first * size : (last + 1) * size]),
        size,
        tier,
        group=group,
        kind=GROUPS[group],
        window=4 if GROUPS[group] == "sliding_window" else 0,
    )


class Follow(RuleBasedStateMachine):
    """One rank's names, in several tiers and groups, with whatever an engine may say."""

    def __init__(self) -> None:
        super().__init__()
        self.resolver = self.new()
        self.told: dict[tuple[Tier, int], dict[int, int]] = {}
        """What the changes come to: of each place, its keys and their segments."""
        self.names: list[tuple[int, Tier, int]] = []

    def new(self) -> Resolver:
        return Resolver("m", "", orphan_bytes=1 << 12, segments=Segments())

    def happen(self, *events: Event) -> None:
        self.follow(self.resolver.apply_all(events))

    def follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Emptied):
                self.told.clear()
                continue
            pairs = dict(zip(change.keys, change.segments, strict=True))
            assert {key: TRUE_SEGMENT[key] for key in change.keys} == pairs
            place = self.told.setdefault(change.spot, {})
            if isinstance(change, Added):
                place.update(pairs)
            else:
                assert isinstance(change, Gone)
                for key in change.keys:
                    del place[key]

    @rule(
        prompt=st.integers(0, len(PROMPTS) - 1),
        first=st.integers(0, BLOCKS - 1),
        more=st.integers(0, 5),
        group=st.sampled_from(sorted(GROUPS)),
    )
    def store(self, prompt: int, first: int, more: int, group: int) -> None:
        event = stored(prompt, first, min(first + more, BLOCKS - 1), 1, Tier.GPU, group)
        self.names += [(name, event.tier, group) for name in event.hashes]
        self.happen(event)

    @rule(
        prompt=st.integers(0, len(PROMPTS) - 1),
        first=st.integers(0, BLOCKS // CHUNK - 1),
        more=st.integers(0, 2),
    )
    def store_chunks(self, prompt: int, first: int, more: int) -> None:
        last = min(first + more, BLOCKS // CHUNK - 1)
        event = stored(prompt, first, last, CHUNK, Tier.CPU, 0)
        self.names += [(name, event.tier, 0) for name in event.hashes]
        self.happen(event)

    @rule(which=st.integers(0, 1000))
    def remove(self, which: int) -> None:
        if self.names:
            name, tier, group = self.names.pop(which % len(self.names))
            self.happen(Removed((name,), tier, group))

    @rule(which=st.integers(0, 1000), tier=st.sampled_from([Tier.CPU, Tier.DISK]))
    def offload_by_name(self, which: int, tier: Tier) -> None:
        if self.names:
            name, _, group = self.names[which % len(self.names)]
            self.names.append((name, tier, group))
            self.happen(Stored((name,), None, None, 0, tier, group=group))

    @rule(which=st.integers(0, 1000))
    def move(self, which: int) -> None:
        if self.names:
            name, tier, group = self.names.pop(which % len(self.names))
            self.names.append((name, Tier.DISK, group))
            self.happen(Moved(name, tier, Tier.DISK, group))

    @rule()
    def clear(self) -> None:
        self.names.clear()
        self.happen(Cleared())

    @rule()
    def doubt(self) -> None:
        self.resolver.doubt()

    @rule()
    def settle(self) -> None:
        self.follow(self.resolver.settle())

    @rule()
    def restart(self) -> None:
        """Go on in another process."""
        saved = msgspec.msgpack.decode(
            msgspec.msgpack.encode(self.resolver.save()), type=SavedResolver
        )
        self.resolver = self.new()
        self.told.clear()
        self.follow(self.resolver.restore(saved))

    @invariant()
    def each_held_key_has_the_segment_of_its_whole_chain(self) -> None:
        check(self.resolver)
        segments = self.resolver.segments
        assert segments is not None
        held = self.resolver.names.held()
        for keys in held.values():
            assert [*segments.of_all(keys)] == [TRUE_SEGMENT[key] for key in keys]
        assert {spot: keys for spot, keys in held.items() if keys} == {
            spot: set(keys) for spot, keys in self.told.items() if keys
        }


@pytest.mark.random
def test_of_every_key_that_is_held_the_segment_is_the_one_of_its_whole_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "SEGMENT", SHORT)
    run_state_machine_as_test(
        Follow, settings=settings(max_examples=examples(200), stateful_step_count=40)
    )


def test_a_long_prompt_lies_in_segments_of_64_blocks() -> None:
    tokens = list(range(2 * 200))
    keys = chain(ROOT, pack_tokens(tokens), BLOCK)
    resolver = Resolver("m", "", orphan_bytes=1, segments=Segments())
    half = tuple(b"%d" % n for n in range(100))
    rest = tuple(b"%d" % n for n in range(100, 200))
    [first] = resolver.apply_all([Stored(half, None, pack_tokens(tokens[:200]), BLOCK)])
    [second] = resolver.apply_all([Stored(rest, b"99", pack_tokens(tokens[200:]), BLOCK)])
    assert isinstance(first, Added)
    assert isinstance(second, Added)
    told = [*first.segments, *second.segments]
    assert told == [keys[n - n % SEGMENT] for n in range(200)]
    assert list(keys[::SEGMENT]) == sorted(set(told), key=told.index)


def test_a_save_without_segments_is_refused_where_they_are_needed() -> None:
    saved = Resolver("m", "", orphan_bytes=1).save()
    with pytest.raises(ValueError, match="segments"):
        Resolver("m", "", orphan_bytes=1, segments=Segments()).restore(saved)


def test_without_segments_changes_say_none() -> None:
    resolver = Resolver("m", "", orphan_bytes=1)
    [change] = resolver.apply_all([Stored((b"a",), None, pack_tokens([1, 2]), 2)])
    assert isinstance(change, Added)
    assert change.segments == ()
