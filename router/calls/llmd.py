"""Answers llm-d's call GetPodScores, in its unit: leading blocks, each times the weight of its tier."""

import math
from collections.abc import Collection, Mapping
from functools import cache, partial

from warmpath.h2grpc.method import Method
from warmpath.proto.pb.indexer.v1 import indexer_pb2 as llmd
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.score import Answerer, HeldBlocks
from warmpath.router.calls.service import RouterService, named
from warmpath.router.config.schema import LlmdTable
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.prompt.models import UnknownModelError
from warmpath.scorer.match import TIERS, Match, spans_of


def weighted_blocks(match: Match, block_size: int, weights: Mapping[str, float]) -> float | None:
    """Return the leading blocks of a match, each times the weight of its tier; None without any.

    A block in several tiers has the highest of their weights. `block_size` is in tokens; a block that
    consists of several of the engine's has the lowest of their weights.

    Source: llm-d-kv-cache 7be76e1, `LongestPrefixScorer` in `pkg/kvcache/kvblock_scorer.go`; sizes:
    `Index.Add` in `pkg/kvcache/kvblock/index.go`.
    """
    done, score = 0, 0.0
    least = math.inf
    """The lowest weight in the last block, which ends in a later span."""
    for start, stop, tier in spans_of(match.held, sorted(TIERS, key=lambda tier: -weights[tier])):
        end = min(stop * match.block_size, match.known_tokens)
        if start * match.block_size >= end:
            break
        weight = weights[tier]
        least = min(least, weight)
        blocks = end // block_size - done
        if blocks:
            score += least + (blocks - 1) * weight
            done += blocks
            least = weight if end % block_size else math.inf
    return score if done else None


WEIGHTS = {"gpu": 1.0, "cpu": 0.8, "disk": 1.0, "remote": 1.0}
"""llm-d's default weight of a block in each tier (`pkg/kvcache/kvblock_scorer.go`)."""
FIELDS = {"prompt.text": "prompt", "prompt.model": "model_name"}
"""The request's fields, for errors, by the fields of the prompt that is made of them."""


class PodScores:
    """Answers GetPodScores: as llm-d's own server, except for what docs/guides/coming-from.md lists.

    Source: llm-d-kv-cache 7be76e1, `examples/kv_cache_index_service/server/server.go` and
    `pkg/kvcache/indexer.go`.
    """

    def __init__(self, answerer: Answerer, config: LlmdTable) -> None:
        self._answerer = answerer
        self._block_size = config.block_size
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
            found = await self._answerer.held_blocks(prompt, timeout, patience)
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
        score_of = cache(partial(weighted_blocks, block_size=self._block_size, weights=WEIGHTS))
        best: dict[str, float] = {}
        for pod in found.pods:
            matches = [found.matches[rank] for rank in pod.ranks if rank in found.matches]
            scores = [score for match in matches if (score := score_of(match)) is not None]
            if not scores:
                continue
            host = pod.address.rpartition(":")[0].strip("[]")
            names = {"address": pod.address, "host": host, "id": pod.id}
            called = {name for name in names.values() if name in wanted}
            for name in called if wanted else (names[self._identifier],):
                best[name] = max(best.get(name, 0.0), *scores)
        return best


SERVICE = llmd.DESCRIPTOR.services_by_name["IndexerService"]


def methods(router: RouterService, scores: PodScores) -> dict[str, Method]:
    """Return the service's methods. Calls wait, are refused, drained and counted with `router`'s."""
    method = SERVICE.methods_by_name["GetPodScores"]
    answer = router.answer(method, scores.get_pod_scores)
    return named(SERVICE, {method.name: router.method(method.name, answer)})
