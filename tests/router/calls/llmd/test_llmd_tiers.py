"""Scores of pods that store, offload and evict at random are llm-d's, tier by tier."""

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.engine_model import BLOCK, EngineModel
from tests.indexer.followed import new_ingest, source
from tests.router.calls.llmd.asked import Asked
from tests.router.calls.llmd.reference import LlmdIndexer
from warmpath.indexer.engines import vllm
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.router.calls.llmd import WEIGHTS
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
    pods = PodTable(Pod(pod, f"{pod}:1", "m", (rank,)) for pod, rank in ranks.items())
    with patch.dict(WEIGHTS, cpu=cpu):
        scores = Asked(ingest, pods, BLOCK).scores(prompt, "m")
    ours = {pod: round(score, 9) for pod, score in scores.items()}
    assert ours == {pod: round(score, 9) for pod, score in theirs.scores(prompt, "m").items()}
