"""A library's user gets the router's own scores: for recordings of real engines, and whatever happens."""

import asyncio
import json
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.recordings import SGLANG_EVENTS, VLLM_EVENTS, VLLM_TRACE
from tests.warmpath.router_side import MODEL, RouterSide, reading, shown
from warmpath import Index, Prompt, Scorer
from warmpath.indexer.engines import sglang, vllm
from warmpath.indexer.engines.event import MalformedEventError, Stored
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import Item, unpack_tokens
from warmpath.lab.verify.recording import Frame, RecordedRequest, read_recording
from warmpath.router.prompt.reader import PromptReader

STRATEGIES = ("longest-prefix", "highest-block", "coverage", "tiered")
CODECS = {"vllm": vllm.decode, "sglang": sglang.decode}


class Sides:
    """The same events to a router, and to three indexes: in bytes, and twice as values.

    One of the latter is told of no engine, which values do not need. SGLang's field `extra_key` counts
    only where one is told of.
    """

    def __init__(self, reader: PromptReader, runner: asyncio.Runner) -> None:
        self.router = RouterSide(reader, runner)
        self.raw, *self.told = (
            Index(MODEL, max_bytes=1 << 24, clock=lambda: self.router.now) for _ in range(3)
        )
        self.scorers = {
            name: [Scorer(index, strategy=name) for index in (self.raw, *self.told)]
            for name in STRATEGIES
        }
        self._engines: dict[str, str] = {}

    def add(self, pod: str, engine: str = "vllm", **more: int) -> None:
        self.router.add(pod, engine, **more)
        self._engines[pod] = engine
        for index, name in zip((self.raw, *self.told), (engine, engine, ""), strict=True):
            index.add(pod, engine=name, **more)

    def frame(self, pod: str, sequence: int, payload: bytes, rank: int = 0) -> bool:
        """Send a batch to all; return whether it can be told in values."""
        self.router.frame(pod, sequence, payload, rank)
        self.raw.feed(pod, payload, rank=rank, sequence=sequence)
        batch = CODECS[self._engines[pod]](payload)
        if batch.unread:
            return False
        for index in self.told:
            index.feed(pod, batch.events, rank=rank)
        return True

    def compare(self, prompt: Prompt, strategy: str = "longest-prefix", *pods: str) -> list[int]:
        """Compare all answers; return the matched tokens of each rank."""
        expected = self.router.score(prompt, pods=pods, strategy=strategy)
        for scorer in self.scorers[strategy]:
            assert shown(scorer.score(prompt, pods=pods)) == expected
        return [one.matched_tokens for one in expected]


@pytest.fixture(scope="module", name="parts")
def _parts() -> Iterator[tuple[PromptReader, asyncio.Runner]]:
    with reading() as parts:
        yield parts


# Recordings


def prompt_of(line: RecordedRequest, adapters: Container[str]) -> Prompt:
    lora = line.model if line.model in adapters else ""
    return Prompt(line.ids, lora=lora, cache_salt=line.cache_salt, items=line.items)


def test_every_request_of_a_recorded_engine_gets_the_same_scores(
    parts: tuple[PromptReader, asyncio.Runner],
) -> None:
    sides = Sides(*parts)
    recording = read_recording(VLLM_TRACE)
    sides.router.add("recorded", blocks=recording.capacity)
    sides.raw.add("recorded", engine="vllm", blocks=recording.capacity)
    matched = []
    for line in recording.lines:
        if isinstance(line, Frame) and not line.replayed:
            sides.router.frame("recorded", line.sequence, line.payload)
            sides.raw.feed("recorded", line.payload, sequence=line.sequence)
        elif isinstance(line, RecordedRequest) and line.ids:
            prompt = prompt_of(line, recording.adapters)
            for strategy in STRATEGIES:
                expected = sides.router.score(prompt, strategy=strategy)
                found = sides.scorers[strategy][0].score(prompt)
                assert shown(found) == expected
            matched.append(found[0].matched_tokens)
    assert len(matched) == 260
    assert sum(tokens > 0 for tokens in matched) > 200


def test_the_first_life_of_a_recorded_engine_can_be_told_in_values(
    parts: tuple[PromptReader, asyncio.Runner],
) -> None:
    sides = Sides(*parts)
    recording = read_recording(VLLM_TRACE)
    sides.add("recorded", blocks=recording.capacity)
    expected, matched = 0, 0
    for line in recording.lines:
        if isinstance(line, Frame) and not line.replayed:
            if line.sequence != expected:
                break
            assert sides.frame("recorded", line.sequence, line.payload)
            expected += 1
        elif isinstance(line, RecordedRequest) and line.ids:
            prompt = prompt_of(line, recording.adapters)
            matched += sum(sides.compare(prompt)) > 0
    assert expected > 400
    assert matched > 150


@pytest.mark.parametrize(("path", "engine"), [(VLLM_EVENTS, "vllm"), (SGLANG_EVENTS, "sglang")])
def test_batches_of_every_version_get_the_same_scores(
    parts: tuple[PromptReader, asyncio.Runner], path: Path, engine: str
) -> None:
    compared = told = matched = 0
    for vector in json.loads(path.read_text(encoding="utf-8"))["vectors"]:
        payload = bytes.fromhex(vector["payload_hex"])
        try:
            events = CODECS[engine](payload).events
        except MalformedEventError:
            events = ()
        sides = Sides(*parts)
        sides.add("p", engine)
        sides.router.frame("p", 0, payload)
        sides.raw.feed("p", payload, sequence=0)
        with suppress(MalformedEventError):
            batch = CODECS[engine](payload)
            if not batch.unread:
                sides.told[0].feed("p", batch.events)
                told += 1
        for event in events:
            if isinstance(event, Stored) and event.tokens:
                ids = list(unpack_tokens(event.tokens))
                prompt = Prompt(
                    [*ids, 1], lora=event.lora.lstrip("\0"), cache_salt=event.cache_salt
                )
                expected = sides.router.score(prompt)
                assert shown(sides.scorers["longest-prefix"][0].score(prompt)) == expected
                compared += 1
                matched += expected[0].matched_tokens > 0
    assert compared > 10
    assert matched > 5
    assert told > 10


# Whatever happens

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
PODS = ("a", "b", "c")
ITEMS = st.lists(st.builds(Item, st.just("i"), st.just(0), st.integers(1, 1)), max_size=1)


class Whatever(RuleBasedStateMachine):
    """Three engines' events, and prompts of any kind."""

    parts: tuple[PromptReader, asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.sides = Sides(*self.parts)
        self.engines = {}
        for number, pod in enumerate(PODS):
            ranks = 2 if pod == "c" else 1
            blocks = 8 if pod == "b" else 0
            self.sides.add(pod, ranks=ranks, blocks=blocks)
            for rank in range(ranks):
                self.engines[pod, rank] = EngineModel(has_digests=bool(number))

    def publish(self, where: RankName, published: tuple[int, bytes] | None) -> None:
        if published is not None:
            sequence, payload = published
            _, events, _ = msgspec.msgpack.decode(payload)
            # In time, as values have no time at which to be late.
            own = msgspec.msgpack.encode([1.0 + self.sides.router.now, events, where[1]])
            assert self.sides.frame(where[0], sequence, own, rank=where[1])

    @rule(
        where=st.sampled_from([("a", 0), ("b", 0), ("c", 0), ("c", 1)]),
        tokens=st.lists(st.integers(0, 2), min_size=2, max_size=8),
        lora=st.sampled_from(["", "l"]),
        salt=st.sampled_from(["", "", "s"]),
    )
    def store(self, where: RankName, tokens: list[int], lora: str, salt: str) -> None:
        self.publish(where, self.engines[where].store(tuple(tokens), lora, salt))

    @rule(
        where=st.sampled_from([("a", 0), ("b", 0), ("c", 0), ("c", 1)]),
        what=st.sampled_from(["evict", "offload"]),
        which=st.integers(0, 7),
    )
    def change(self, where: RankName, what: str, which: int) -> None:
        self.publish(where, getattr(self.engines[where], what)(which))

    @rule(where=st.sampled_from([("a", 0), ("b", 0), ("c", 1)]))
    def clear(self, where: RankName) -> None:
        self.publish(where, self.engines[where].clear())

    @rule(
        tokens=TOKENS,
        lora=st.sampled_from(["", "l"]),
        salt=st.sampled_from(["", "", "s"]),
        extra_key=st.sampled_from(["", "", "k"]),
        items=ITEMS,
        strategy=st.sampled_from(STRATEGIES),
        pods=st.lists(st.sampled_from([*PODS, "nowhere"]), max_size=3),
    )
    def score(
        self,
        tokens: list[int],
        lora: str,
        salt: str,
        extra_key: str,
        items: list[Item],
        strategy: str,
        pods: list[str],
    ) -> None:
        prompt = Prompt(tokens, lora=lora, cache_salt=salt, extra_key=extra_key, items=items)
        self.sides.compare(prompt, strategy, *pods)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.sides.router.now += seconds

    @invariant()
    def parts_agree(self) -> None:
        for index in (self.sides.raw, *self.sides.told):
            check(index.ingest)


def test_whatever_engines_say_and_callers_ask_the_scores_are_the_same(
    parts: tuple[PromptReader, asyncio.Runner],
) -> None:
    Whatever.parts = parts
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Whatever,
        settings=settings(max_examples=examples(300), stateful_step_count=30, deadline=None),
    )
