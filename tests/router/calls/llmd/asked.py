"""llm-d's service of a router, asked for prompts whose tokens a test knows."""

import asyncio
from collections.abc import Sequence
from typing import Any

from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.proto.pb.indexer.v1 import indexer_pb2 as llmd
from warmpath.router.calls.llmd import PodScores
from warmpath.router.calls.score import Answerer
from warmpath.router.config.schema import LlmdTable
from warmpath.router.match.match import Scorer
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.reader import ReadPrompt
from warmpath.router.prompt.token_prompt import TokenPrompt


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
