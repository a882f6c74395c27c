"""Whatever engines say, the compiled form of a rank holds what the pure one holds.

Hybrid models' groups, names in bytes, pairs of tokens, adapters, salts, chunks of several blocks, copies,
names of two contents, and doubt, of several ranks that share blocks, some with names of their own; and
engines that evict blocks before their children, while the pure form knows of no numbers that are freed and
given out again.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace as changed

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.sides import CLEARED, Event, Side, removed, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.array_rank import ArrayState
from warmpath.indexer.compiled.arrays import Arrays
from warmpath.indexer.compiled.blocks.blocks import DEPTH, FREE, FREED, SET, TOP
from warmpath.indexer.engines.event import EngineHash, Tier
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.resolve.change import Spot

B = 2
PODS = ("int", "int too", "bytes", "other names", "pairs")
KINDS = ("full_attention", "sliding_window", "mamba", "chunked_local_attention")

Path = tuple[int, ...]
EARLY: list[Path] = [(number,) for number in range(2, 8)]
"""Blocks with the first numbers, which sets have too."""


def tokens_of(path: Path) -> list[int]:
    return [10 * token + at for token in path for at in range(B)]


def key_of(path: Path) -> int:
    return chain(Keyspace("m", B).root(), pack_tokens(tokens_of(path)), B)[-1]


PARENTS = {
    key_of(path): key_of(path[:-1])
    for depth in range(2, 7)
    for path in product(range(2), repeat=depth)
}
"""The key of the parent of each block of plain prompts."""


@dataclass(frozen=True)
class Said:
    """An event, before an engine writes it in its own way."""

    path: Path
    """What the blocks hold, from the prompt's first block on."""
    first: int
    """The first of them that the event names."""
    lora: str = ""
    salt: str = ""
    group: int = 0
    has_kind: bool = True
    medium: str = "GPU"
    has_tokens: bool = True
    chunk: int = 1
    """Blocks of the fastest tier in one of its blocks."""
    is_removal: bool = False
    alias: int = 0
    """Another content's name where it is not 0."""
    item: bool = False
    """Whether the last block overlaps an image."""


@st.composite
def said(draw: st.DrawFn) -> Said:
    path = tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)))
    usual = st.sampled_from([0] * 12 + [1])
    group = draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3]))
    return Said(
        path,
        draw(st.sampled_from([0, 0, len(path) - 1, len(path) // 2])),
        lora=draw(st.sampled_from(["", "", "a"])),
        salt=draw(st.sampled_from(["", "", "s", "t" * 150])),
        group=group,
        has_kind=group > 0 or draw(st.booleans()),
        medium=draw(st.sampled_from(["GPU", "GPU", "GPU", "CPU"])),
        has_tokens=not draw(usual),
        chunk=1 + draw(usual),
        is_removal=draw(st.sampled_from([False, False, True])),
        alias=draw(usual),
        item=bool(draw(usual)),
    )


def written(pod: str, one: Said) -> Event:
    """Return an event as a pod's engine writes it."""
    if pod == "pairs":
        one = replace(one, group=0, has_tokens=True, item=False, chunk=1)
    steps = range(one.first + one.chunk, len(one.path) + 1, one.chunk)
    names = [name_of(pod, one, end) for end in steps]
    more: Event = {} if pod == "pairs" else {"group_idx": one.group or None}
    if one.is_removal:
        return removed(names, one.medium, **more)
    count = len(names) * one.chunk * B
    tokens = tokens_of(one.path[one.first :])[:count]
    parent = name_of(pod, one, one.first) if one.first else None
    if pod == "pairs":
        pairs = [[a, b] for a, b in zip(tokens, [*tokens[1:], 0], strict=True)]
        event = stored(names, [], parent, B, cache_salt=one.salt or None, token_ids=pairs)
    else:
        extras = [[one.lora] if one.lora else [] for _ in names]
        if one.salt and not one.first and extras:
            extras[0].append(one.salt)
        if one.item and extras:
            extras[-1].append(["image", 0])  # type: ignore[arg-type]
        size = one.chunk * B if one.has_tokens else 0
        event = stored(names, tokens if one.has_tokens else [], parent, size, **more)
        if one.has_tokens:
            event["extra_keys"] = extras
        if one.has_kind:
            event["kv_cache_spec_kind"] = KINDS[one.group]
            event["kv_cache_spec_sliding_window"] = 4 if one.group == 1 else None
    return event | {"lora_name": one.lora or None, "medium": one.medium}


def name_of(pod: str, one: Said, end: int) -> int | bytes:
    content = repr((one.lora, one.salt, one.path[:end], one.alias and one.path[-1]))
    if one.alias:
        content = repr(("", "", (one.path[-1],), 0))
    if pod == "other names" and one.path[:end] == (2,):
        return 0
    digest = hashlib.sha256(f"{pod == 'other names'}{content}".encode()).digest()
    return digest if pod == "bytes" else int.from_bytes(digest[-8:], "big")


HAPPENINGS: dict[str, Callable[[Side, str], object]] = {
    "a clear": lambda side, pod: side.send(pod, CLEARED),
    "a lost batch": Side.lose,
    "a doubt": Side.doubt,
    "a doubt's end": lambda side, pod: side.rank(pod).state.settle(),
    "too many blocks": lambda side, pod: side.rank(pod).state.give_up_excess(),
}


class FormsAgree(RuleBasedStateMachine):
    """The same frames to both forms.

    Where all is plain, caches are small, and numbers may be given out again.
    """

    def __init__(self, *, is_plain: bool) -> None:
        super().__init__()
        self.is_plain = is_plain
        self.are_links_lost = False
        self.sides = [Side("compiled"), Side("pure")]
        for side in self.sides:
            for pod in PODS:
                side.rank(pod, engine=engine_of(pod)).learn_capacity(6 if is_plain else 0)
        if is_plain:
            for pod, path in product(PODS, EARLY):
                self.tell(pod, Said(path, 0))

    def tell(self, pod: str, *some: Said) -> None:
        for side in self.sides:
            side.send(pod, *(written(pod, one) for one in some))

    @rule(
        pod=st.sampled_from(PODS),
        batches=st.lists(st.lists(said(), min_size=1, max_size=4), min_size=1, max_size=6),
    )
    def say(self, pod: str, batches: list[list[Said]]) -> None:
        # One by one: of batches that arrive together the doubt that one brings comes after the last.
        for batch in batches:
            self.tell(pod, *(plain(one) if self.is_plain else one for one in batch))

    @rule(
        pod=st.sampled_from(PODS),
        path=st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple),
        early=st.sampled_from(EARLY),
        again=st.booleans(),
    )
    def evict_the_parent_and_go_on_behind_the_child(
        self, pod: str, path: Path, early: Path, *, again: bool
    ) -> None:
        for one in PODS:
            self.tell(one, Said(early, 0, is_removal=True))
        whole = (*path, 0, 1)
        self.tell(pod, Said(whole[:-1], 0))
        self.tell(pod, Said(path, len(path) - 1, is_removal=True))
        if again:
            self.tell(pod, Said(path, len(path) - 1))
        self.happen(pod, "a doubt")
        self.tell(pod, Said(whole, len(whole) - 1))

    @rule(pod=st.sampled_from(PODS), what=st.sampled_from(sorted(HAPPENINGS)))
    def happen(self, pod: str, what: str) -> None:
        for side in self.sides:
            HAPPENINGS[what](side, pod)

    @rule()
    def give_numbers_out_again(self) -> None:
        """Do as an index does once many blocks were freed: links to blocks that are gone are lost."""
        if self.is_plain:
            self.arrays.wake()
            self.are_links_lost = True

    @property
    def arrays(self) -> Arrays:
        index = self.sides[0].index
        assert isinstance(index, ArrayIndex)
        return index.arrays

    @rule(pods=st.permutations(PODS[:4]), some=st.lists(said(), min_size=1, max_size=4))
    def serve_alike(self, pods: list[str], some: list[Said]) -> None:
        """Let pods store the same hybrid model's prompts, as engines do."""
        for pod in pods if not self.is_plain else ():
            payloads = []
            for one in some:
                kept = replace(one, alias=0, chunk=1, item=False, is_removal=False, medium="GPU")
                kept = replace(kept, has_kind=True, has_tokens=True, first=0)
                events = [written(pod, replace(kept, group=group)) for group in (0, 1, 2)]
                payloads.append(msgspec.msgpack.encode([0.5, events, 0]))
            for side in self.sides:
                side.frames(pod, payloads)

    @rule(pod=st.sampled_from(PODS), swaps=st.booleans(), one_by_one=st.booleans())
    def restart(self, pod: str, *, swaps: bool, one_by_one: bool) -> None:
        """Let other processes go on from what these save, perhaps of the other form."""
        saved = [side.saved(pod) for side in self.sides]
        for side, one in zip(self.sides, saved[::-1] if swaps else saved, strict=True):
            kept = changed(one, resolver=one.resolver.one_by_one()) if one_by_one else one
            side.restart(pod, 0, engine_of(pod), kept)

    @rule(budget=st.integers(1, 100))
    def tick(self, budget: int) -> None:
        for side in self.sides:
            side.ingest.tick(budget)

    @invariant()
    def parts_agree(self) -> None:
        for side in self.sides:
            check(side.ingest)

    @invariant()
    def every_parent_is_the_blocks_own(self) -> None:
        blocks = self.arrays.blocks
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
    def forms_agree(self) -> None:
        for pod in PODS:
            compiled, pure = (side.rank(pod) for side in self.sides)
            if self.is_plain:
                mine, other = holdings(compiled), holdings(pure)
                assert self.are_links_lost or mine == other
                for spot, (held, doubted) in mine.items():
                    there, doubted_there = other.get(spot, (set(), set()))
                    assert held <= there
                    assert held - doubted <= there - doubted_there
            if self.are_links_lost:
                continue
            mine, other = (
                {spot: keys for spot, keys in one.state.held().items() if keys}
                for one in (compiled, pure)
            )
            assert mine == other
            assert compiled.layout == pure.layout
            assert compiled.state.counts == pure.state.counts
            assert compiled.blocks_in_use() == pure.blocks_in_use()
            assert compiled.trust == pure.trust


def plain(one: Said) -> Said:
    """Return an event of the same kind on a prompt of tokens alone, of few different ones."""
    path = tuple(token % 2 for token in one.path)
    return Said(path, one.first, medium=one.medium, is_removal=one.is_removal)


def holdings(rank: RankIngest) -> dict[Spot, tuple[set[EngineHash], set[EngineHash]]]:
    """Return the names that each place of a rank holds, and those of them that are in doubt."""
    return {
        (Tier(one.tier), one.group): (set(one.copies), set(one.doubted))
        for one in rank.save().resolver.one_by_one().holdings
        if one.copies
    }


def engine_of(pod: str) -> str:
    return "sglang" if pod == "pairs" else "vllm"


@pytest.mark.random
@pytest.mark.parametrize(("is_plain", "share", "steps"), [(False, 300, 20), (True, 100, 40)])
def test_both_forms_hold_the_same(*, is_plain: bool, share: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: FormsAgree(is_plain=is_plain),
        settings=settings(max_examples=examples(share), stateful_step_count=steps),
    )


def test_what_engines_usually_say_keeps_no_names_beside_the_arrays() -> None:
    side = Side("compiled")
    for pod in PODS:
        rank = side.rank(pod, engine=engine_of(pod))
        groups = (0,) if pod == "pairs" else (0, 1, 2, 3)
        for lora, salt in (("", ""), ("a", ""), ("a", "s"), ("", "s")):
            one = Said((0, 1, 2, 0), 0, lora, salt)
            side.send(pod, *(written(pod, replace(one, group=group)) for group in groups))
            later = replace(one, path=(*one.path, 1, 1), first=4)
            side.send(pod, *(written(pod, replace(later, group=group)) for group in groups))
            tier = replace(one, medium="CPU", has_tokens=pod == "pairs")
            side.send(pod, *(written(pod, replace(tier, group=group)) for group in groups[:3]))
            gone = replace(one, first=2, is_removal=True)
            side.send(pod, *(written(pod, replace(gone, group=group)) for group in groups[:2]))
        check(rank)
        assert isinstance(rank.state, ArrayState)
        assert len(rank.state.held()) == (2 if pod == "pairs" else 6)
        assert not rank.state.save().keys
