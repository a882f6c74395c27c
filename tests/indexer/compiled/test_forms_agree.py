"""Whatever engines say, the compiled form of a rank holds what the pure one holds.

Hybrid models' groups, names in bytes, pairs of tokens, adapters, salts, chunks of several blocks, copies,
names of two contents, and doubt, of several ranks that share blocks, some with names of their own.
"""

import hashlib
from dataclasses import dataclass, replace

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace as changed

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.sides import CLEARED, Event, Side, removed, stored
from warmpath.indexer.compiled.array_rank import ArrayState
from warmpath.indexer.follow.stream_source import SavedRank

B = 2
PODS = ("int", "bytes", "other names", "pairs")
KINDS = ("full_attention", "sliding_window", "mamba", "chunked_local_attention")

Path = tuple[int, ...]


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
    tokens = [10 * token + at for token in one.path[one.first :] for at in range(B)][:count]
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


class FormsAgree(RuleBasedStateMachine):
    """The same frames to both forms."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = [Side("compiled"), Side("pure")]
        for side in self.sides:
            for pod in PODS:
                side.rank(pod, engine=engine_of(pod))

    @rule(
        pod=st.sampled_from(PODS),
        batches=st.lists(st.lists(said(), min_size=1, max_size=4), min_size=1, max_size=6),
    )
    def say(self, pod: str, batches: list[list[Said]]) -> None:
        # One by one: of batches that arrive together the doubt that one brings comes after the last.
        for side in self.sides:
            for batch in batches:
                side.send(pod, *(written(pod, one) for one in batch))

    @rule(pods=st.permutations(PODS[:3]), some=st.lists(said(), min_size=1, max_size=4))
    def serve_alike(self, pods: list[str], some: list[Said]) -> None:
        """Let pods store the same hybrid model's prompts, as engines do."""
        for pod in pods:
            payloads = []
            for one in some:
                plain = replace(one, alias=0, chunk=1, item=False, is_removal=False, medium="GPU")
                events = []
                for group in (0, 1, 2):
                    kept = replace(plain, group=group, has_kind=True, has_tokens=True, first=0)
                    events.append(written(pod, kept))
                payloads.append(msgspec.msgpack.encode([0.5, events, 0]))
            for side in self.sides:
                side.frames(pod, payloads)

    @rule(pod=st.sampled_from(PODS))
    def clear(self, pod: str) -> None:
        for side in self.sides:
            side.send(pod, CLEARED)

    @rule(pod=st.sampled_from(PODS))
    def lose(self, pod: str) -> None:
        for side in self.sides:
            side.lose(pod)

    @rule(pod=st.sampled_from(PODS))
    def settle(self, pod: str) -> None:
        for side in self.sides:
            side.rank(pod).state.settle()

    @rule(pod=st.sampled_from(PODS))
    def give_up_excess(self, pod: str) -> None:
        for side in self.sides:
            side.rank(pod).state.give_up_excess()

    @rule(pod=st.sampled_from(PODS), swaps=st.booleans(), one_by_one=st.booleans())
    def restart(self, pod: str, *, swaps: bool, one_by_one: bool) -> None:
        """Let other processes go on from what these save, perhaps of the other form."""
        saved = [msgspec.msgpack.encode(side.rank(pod).save()) for side in self.sides]
        for side, raw in zip(self.sides, saved[::-1] if swaps else saved, strict=True):
            again = msgspec.msgpack.decode(raw, type=SavedRank)
            if one_by_one:
                again = changed(again, resolver=again.resolver.one_by_one())
            side.ingest.remove(pod, 0)
            sequence = side.sequence[pod, 0]
            side.rank(pod, engine=engine_of(pod)).restore(again)
            side.sequence[pod, 0] = sequence

    @rule(budget=st.integers(1, 100))
    def tick(self, budget: int) -> None:
        for side in self.sides:
            side.ingest.tick(budget)

    @invariant()
    def parts_agree(self) -> None:
        for side in self.sides:
            check(side.ingest)

    @invariant()
    def forms_agree(self) -> None:
        for pod in PODS:
            compiled, pure = (side.rank(pod) for side in self.sides)
            held = [
                {spot: keys for spot, keys in one.state.held().items() if keys}
                for one in (compiled, pure)
            ]
            assert held[0] == held[1]
            assert compiled.layout == pure.layout
            assert compiled.state.counts == pure.state.counts
            assert compiled.blocks_in_use() == pure.blocks_in_use()
            assert compiled.trust == pure.trust


def engine_of(pod: str) -> str:
    return "sglang" if pod == "pairs" else "vllm"


FormsAgree.TestCase.settings = settings(
    max_examples=examples(300), stateful_step_count=20, deadline=None
)
TestFormsAgree = FormsAgree.TestCase


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


def test_a_name_of_zero_is_removed() -> None:
    for form in ("compiled", "pure"):
        side = Side(form)
        side.send("p", stored([0, 1], [1, 2, 3, 4], None, B))
        side.send("p", removed([0]))
        assert side.blocks([1, 2, 3, 4], B) == {"p": 1}
        check(side.ingest)
