"""Scores of pods that store, offload and evict at random are llm-d's, tier by tier."""

import asyncio
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.engine_model import BLOCK, EngineModel
from tests.indexer.followed import new_ingest, source
from tests.router.calls.llmd.reference import LlmdIndexer
from tests.router.ready_prompts import ReadyPrompts
from warmpath.indexer.engines import vllm
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.proto.pb.indexer.v1 import indexer_pb2 as llmd
from warmpath.router.calls.llmd import WEIGHTS, PodScores
from warmpath.router.calls.score import Answerer
from warmpath.router.config.schema import LlmdTable
from warmpath.router.match.match import Scorer
from warmpath.router.pods.table import Pod, PodTable

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
    reader = ReadyPrompts()
    reader.ids = list(prompt)
    pods = PodTable(Pod(pod, f"{pod}:1", "m", (rank,)) for pod, rank in ranks.items())
    found = Answerer(
        reader,  # type: ignore[arg-type]
        Scorer(ingest, ""),
        pods,
        clock=lambda: 0.0,
        wall_offset=lambda: 0.0,
    )
    config = LlmdTable(block_size=BLOCK, identifier="id")
    request = llmd.GetPodScoresRequest(prompt="text", model_name="m")
    with patch.dict(WEIGHTS, cpu=cpu):
        answer = asyncio.run(PodScores(found, config).get_pod_scores(request, 1.0, 1.0))
    ours = {score.pod: round(score.score, 9) for score in answer.scores}
    assert ours == {pod: round(score, 9) for pod, score in theirs.scores(prompt, "m").items()}
