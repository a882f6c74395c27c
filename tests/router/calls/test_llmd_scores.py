"""Scores are those that llm-d gives: of its unit, of recordings of real engines, of random ones, tier by tier."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.engine_model import BLOCK, EngineModel
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.recordings import VLLM_TRACE
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Cleared, Event, Removed, Stored
from warmpath.indexer.keys.key import pack_tokens, unpack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.lab.verify.recording import Frame, Life, RecordedRequest, read_recording
from warmpath.proto.pb.indexer.v1 import indexer_pb2 as llmd
from warmpath.router.calls.llmd import WEIGHTS, PodScores, weighted_blocks
from warmpath.router.calls.score import Answerer
from warmpath.router.config.schema import LlmdTable
from warmpath.router.match.match import Scorer
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.reader import ReadPrompt
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import TIERS, match_of

Key = tuple[object, ...]
DEFAULT: Mapping[str, float] = {"gpu": 1.0, "cpu": 0.8}
"""Any other tier weighs 1."""


class LlmdIndexer:
    """One index. `block_size` is llm-d's `blockSizeTokens`; a multiple or a part of the engines'."""

    def __init__(self, block_size: int, weights: Mapping[str, float] = DEFAULT) -> None:
        self._block_size = block_size
        self._weights = weights
        self._holders: dict[Key, set[tuple[str, str]]] = {}
        """Pods and tiers by key."""
        self._keys: dict[int, list[Key]] = {}
        """Keys by the engine's name of a block."""
        self._copies: Counter[tuple[str, str, int]] = Counter()

    def apply(self, pod: str, model: str, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Stored):
                self._store(pod, event.lora or model, event)
            elif isinstance(event, Removed):
                self._remove(pod, event)
            elif isinstance(event, Cleared):
                self.clear(pod)

    def _store(self, pod: str, model: str, event: Stored) -> None:
        parent: Key = (model,)
        if event.parent is not None:
            known = self._keys.get(event.parent)
            if not known:
                return
            parent = known[-1]
        tokens = unpack_tokens(event.tokens) if event.tokens else []
        taints = event.extras or ()
        made = self._made(parent, tokens, [*taints], event.block_size)
        for number, name in enumerate(event.hashes):
            self._copies[pod, event.tier, name] += 1
            if made:
                self._keys[name] = _share(made, number, len(event.hashes))
        keys = made or [key for name in event.hashes for key in self._keys.get(name, ())]
        for key in keys:
            self._holders.setdefault(key, set()).add((pod, event.tier))

    def _made(
        self, parent: Key, tokens: Sequence[int], taints: Sequence[bytes | None], size: int
    ) -> list[Key]:
        made = []
        step = self._block_size
        for start in range(0, len(tokens) - step + 1, step):
            taint = taints[start // size] if start // size < len(taints) else None
            parent = (hash((parent, tuple(tokens[start : start + step]), taint)),)
            made.append(parent)
        return made

    def _remove(self, pod: str, event: Removed) -> None:
        assert event.tier is not None
        for name in event.hashes:
            self._copies[pod, event.tier, name] -= 1
            if self._copies[pod, event.tier, name] <= 0:
                for key in self._keys.get(name, ()):
                    self._holders.get(key, set()).discard((pod, event.tier))

    def clear(self, pod: str) -> None:
        for holders in self._holders.values():
            holders.difference_update([one for one in holders if one[0] == pod])
        for name in [name for name in self._copies if name[0] == pod]:
            del self._copies[name]

    def scores(
        self, tokens: Sequence[int], model: str, pods: Collection[str] = ()
    ) -> dict[str, float]:
        """Return each pod's score; without `pods`, of all pods that hold the first block."""
        scores: dict[str, float] = {}
        active: set[str] | None = None
        for key in self._made((model,), tokens, (), self._block_size):
            weights: dict[str, float] = {}
            for pod, tier in self._holders.get(key, ()):
                if not pods or pod in pods:
                    weights[pod] = max(weights.get(pod, 0.0), self._weights.get(tier, 1.0))
            active = {*weights} if active is None else active & weights.keys()
            for pod in active:
                scores[pod] = scores.get(pod, 0.0) + weights[pod]
        return scores


def _share(keys: list[Key], number: int, names: int) -> list[Key]:
    """Return the keys that belong to one of `names` names: one each, several each, or one of several."""
    most = max(len(keys), names)
    pairs = [(at * names // most, at * len(keys) // most) for at in range(most)]
    return [keys[key] for name, key in pairs if name == number]


class Asked:
    """Reads each prompt as the token ids that it is asked for."""

    def __init__(self, ingest: Ingest, pods: PodTable, block_size: int) -> None:
        found = Answerer(
            self,  # type: ignore[arg-type]
            Scorer(ingest, ""),
            pods,
            clock=lambda: 0.0,
            wall_offset=lambda: 0.0,
        )
        self._scores = PodScores(found, LlmdTable(block_size=block_size, identifier="id"))
        self._ids: Sequence[int] = ()

    async def read(self, message: Any, _: float) -> ReadPrompt:
        return ReadPrompt(TokenPrompt(message.model, pack_tokens(self._ids)), 0)

    def scores(self, ids: Sequence[int], model: str) -> dict[str, float]:
        self._ids = ids
        request = llmd.GetPodScoresRequest(prompt="text", model_name=model)
        answer = asyncio.run(self._scores.get_pod_scores(request, 1.0, 1.0))
        return {score.pod: score.score for score in answer.scores}


stretches = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 6), st.sampled_from(TIERS)).map(
        lambda one: (one[0], one[0] + one[1], one[2])
    ),
    max_size=8,
)
weights = st.fixed_dictionaries({tier: st.sampled_from([0.0, 0.25, 0.8, 1.0]) for tier in TIERS})


def test_llmds_own_examples_score_the_same() -> None:
    # `TestLongestPrefixScorer` and `TestLongestPrefixScorerDifferentTiers` of kvblock_scorer_test.go.
    weights = WEIGHTS | {"cpu": 0.5}
    both = match_of([(0, 3, "gpu"), (2, 3, "cpu"), (5, 6, "gpu")], 16)
    assert weighted_blocks(both, 16, weights) == 3.0
    apart = match_of([(0, 2, "gpu"), (2, 3, "cpu"), (5, 6, "gpu")], 16)
    assert weighted_blocks(apart, 16, weights) == 2.5
    assert weighted_blocks(match_of([(3, 5, "cpu")], 16), 16, weights) is None


@given(
    stretches, weights, st.sampled_from([(16, 16), (16, 64), (64, 16), (24, 16), (16, 24), (5, 3)])
)
@settings(max_examples=examples(600))
def test_leading_blocks_of_any_size_are_whole_and_as_heavy_as_their_lightest_part(
    held: list[tuple[int, int, str]], weight: dict[str, float], sizes: tuple[int, int]
) -> None:
    engines, llmds = sizes
    tokens: list[float] = []
    while tiers := [tier for start, stop, tier in held if start <= len(tokens) // engines < stop]:
        tokens += [max(weight[tier] for tier in tiers)] * engines
    whole = len(tokens) // llmds
    expected = sum(min(tokens[at * llmds : (at + 1) * llmds]) for at in range(whole))
    score = weighted_blocks(match_of(held, engines), llmds, weight)
    assert score == (pytest.approx(expected) if whole else None)


MODEL = "tiny"


def recorded_scores(
    *, pure: bool, block_size: int
) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Yield llm-d's scores and ours of each recorded prompt, when it comes.

    The second pod gets every other batch's events later than the first one: when the next comes.
    """
    recording = read_recording(VLLM_TRACE)
    index = MemoryIndex() if pure else embedded_index(1 << 24)
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 24, stale_after=1.0, clock=lambda: 0.0)
    ranks = {pod: ingest.add(source(pod, model=MODEL)) for pod in ("early", "late")}
    pods = PodTable(
        Pod(pod, f"10.0.0.{number}:8000", MODEL, (rank,))
        for number, (pod, rank) in enumerate(ranks.items())
    )
    ours, theirs = Asked(ingest, pods, block_size), LlmdIndexer(block_size)
    waiting: list[Frame] = []

    def take(pod: str, frame: Frame) -> None:
        ranks[pod].live_many([(frame.topic, frame.sequence, frame.payload)])
        theirs.apply(pod, MODEL, vllm.decode(frame.payload).events)

    for rank in ranks.values():
        rank.connected()
        rank.replay_ended(1)
    for line in recording.lines:
        if isinstance(line, Life) and line.action == "stop":
            return
        if isinstance(line, Frame) and not line.replayed:
            take("early", line)
            waiting.append(line)
            if len(waiting) > 1:
                for frame in waiting:
                    take("late", frame)
                waiting.clear()
        elif isinstance(line, RecordedRequest) and not line.items:
            ids = unpack_tokens(line.ids)
            yield theirs.scores(ids, MODEL), ours.scores(ids, MODEL)


@pytest.mark.parametrize("pure", [False, True])
def test_every_prompt_of_a_recorded_vllm_scores_as_llmd_scores_it(pure: bool) -> None:
    compared = list(recorded_scores(pure=pure, block_size=32))
    assert [ours for _, ours in compared] == [theirs for theirs, _ in compared]
    found = [theirs for theirs, _ in compared if theirs]
    assert len(found) > 50
    assert sum(one.get("early") != one.get("late") for one in found) > 5


def test_where_llmds_blocks_are_smaller_each_block_of_the_engine_counts_as_several() -> None:
    # llm-d itself counts halves of blocks, which no engine reuses, and loses those that two blocks share.
    same = [theirs for theirs, _ in recorded_scores(pure=False, block_size=32)]
    halves = list(recorded_scores(pure=False, block_size=16))
    assert [ours for _, ours in halves] == [
        {pod: 2 * score for pod, score in one.items()} for one in same
    ]
    assert any(theirs.get("early", 0) % 2 for theirs, _ in halves)


PODS = ("a", "b")
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)
steps = st.lists(
    st.tuples(
        st.sampled_from(PODS),
        st.one_of(
            prompts,
            st.tuples(st.sampled_from(["offload", "drop", "evict", "clear"]), st.integers(0, 20)),
        ),
    ),
    max_size=20,
)


@given(steps, prompts, st.sampled_from([0.0, 0.8, 1.0]))
@settings(max_examples=examples(600))
def test_pods_score_as_llmd_scores_them(
    taken: list[tuple[str, tuple[object, ...]]], prompt: tuple[int, ...], cpu: float
) -> None:
    ingest = new_ingest(MemoryIndex)
    ranks = {pod: ingest.add(source(pod, has_replay=False)) for pod in PODS}
    theirs = LlmdIndexer(BLOCK, {"gpu": 1.0, "cpu": cpu})
    engines = {pod: EngineModel() for pod in PODS}
    for rank in ranks.values():
        rank.connected()
    for pod, step in taken:
        engine = engines[pod]
        match step:
            case ("offload", int(which)):
                batch = engine.offload(which)
            case ("drop", _):
                batch = engine.drop_offloaded()
            case ("evict", int(which)):
                batch = engine.evict(which)
            case ("clear", _):
                batch = engine.clear()
            case _:
                batch = engine.store(step)  # type: ignore[arg-type]
        if batch is not None:
            ranks[pod].live_many([("", *batch)])
            theirs.apply(pod, "m", vllm.decode(batch[1]).events)
    pods = PodTable(Pod(pod, f"{pod}:1", "m", (rank,)) for pod, rank in ranks.items())
    with patch.dict(WEIGHTS, cpu=cpu):
        scores = Asked(ingest, pods, BLOCK).scores(prompt, "m")
    ours = {pod: round(score, 9) for pod, score in scores.items()}
    assert ours == {pod: round(score, 9) for pod, score in theirs.scores(prompt, "m").items()}
