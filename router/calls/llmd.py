"""Answers llm-d's call GetPodScores; the sockets are the gRPC server's."""

from collections.abc import Collection, Mapping
from functools import cache

from msgspec.structs import asdict

from warmpath.proto.pb.indexer.v1 import indexer_pb2 as llmd
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.holdings import HeldBlocks, Holdings
from warmpath.router.calls.weighted_blocks import WeightedBlocks
from warmpath.router.config.schema import LlmdTable
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.models import UnknownModelError

FIELDS = {"prompt.text": "prompt", "prompt.model": "model_name"}
"""The request's fields, by the fields of the prompt that is read from them."""


class PodScores:
    """Answers GetPodScores: as llm-d's own server, except for what docs/coming-from.md lists.

    Source: llm-d-kv-cache 7be76e1, `examples/kv_cache_index_service/server/server.go` and
    `pkg/kvcache/indexer.go`.
    """

    def __init__(self, holdings: Holdings, config: LlmdTable) -> None:
        self._holdings = holdings
        self._blocks = WeightedBlocks(config.block_size, asdict(config.weights))
        self._identifier = config.identifier

    async def get_pod_scores(
        self, request: llmd.GetPodScoresRequest, timeout: float, patience: float
    ) -> llmd.GetPodScoresResponse:
        """Answer GetPodScores. Tokenising takes at most `timeout` seconds, all waits `patience`.

        Raises the errors of `PromptReader.read`, with the request's own fields. An unknown model is no
        error: no pod holds a block of it.
        """
        if not request.prompt:
            return llmd.GetPodScoresResponse()
        prompt = pb.Prompt(model=request.model_name, text=request.prompt)
        try:
            found = await self._holdings.find(prompt, timeout, patience)
        except UnknownModelError:
            return llmd.GetPodScoresResponse()
        except BadRequestError as error:
            raise error.renamed(FIELDS) from error
        scores = self._scores(found, frozenset(request.pod_identifiers))
        return llmd.GetPodScoresResponse(
            scores=[llmd.PodScore(pod=name, score=score) for name, score in scores.items()]
        )

    def _scores(self, found: HeldBlocks, wanted: Collection[str]) -> dict[str, float]:
        """Return the best score of each identifier; if `wanted` is empty, of all pods."""
        # Ranks often share one match.
        score_of = cache(self._blocks.score)
        best: dict[str, float] = {}
        for pod in found.pods:
            matches = [found.matches[rank] for rank in pod.ranks if rank in found.matches]
            scores = [score for match in matches if (score := score_of(match)) is not None]
            if not scores:
                continue
            names = identifiers(pod)
            called = {name for name in names.values() if name in wanted}
            for name in called if wanted else (names[self._identifier],):
                best[name] = max(best.get(name, 0.0), *scores)
        return best


def identifiers(pod: Pod) -> Mapping[str, str]:
    """Return a pod's names for llm-d's callers, by kind of name (`llmd.identifier`)."""
    host = pod.address.rpartition(":")[0].strip("[]")
    return {"address": pod.address, "host": host, "id": pod.id}
