"""Scores on recordings of real engines are those that llm-d's index gives, block for block."""

from collections.abc import Iterator

import pytest

from tests.indexer.followed import source
from tests.recordings import VLLM_TRACE
from tests.router.calls.llmd.asked import Asked
from tests.router.calls.llmd.reference import LlmdIndexer
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.key import unpack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.lab.verify.recording import Frame, Life, RecordedRequest, read_recording
from warmpath.router.pods.table import Pod, PodTable

MODEL = "tiny"


def scores(*, pure: bool, block_size: int) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
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
    compared = list(scores(pure=pure, block_size=32))
    assert [ours for _, ours in compared] == [theirs for theirs, _ in compared]
    found = [theirs for theirs, _ in compared if theirs]
    assert len(found) > 50
    assert sum(one.get("early") != one.get("late") for one in found) > 5


def test_where_llmds_blocks_are_smaller_each_block_of_the_engine_counts_as_several() -> None:
    # llm-d itself counts halves of blocks, which no engine reuses, and loses those that two blocks share.
    same = [theirs for theirs, _ in scores(pure=False, block_size=32)]
    halves = list(scores(pure=False, block_size=16))
    assert [ours for _, ours in halves] == [
        {pod: 2 * score for pod, score in one.items()} for one in same
    ]
    assert any(theirs.get("early", 0) % 2 for theirs, _ in halves)
