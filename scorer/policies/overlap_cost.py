"""Tokens to compute and tokens to decode over, added up."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order


@dataclass(frozen=True, slots=True)
class OverlapCost:
    """Dynamo's cost (`shared/bench/peer-features.md`, 3), in tokens where it counts blocks.

    Prefill: what is booked and not computed, this prompt's part included, times the weight. Decode:
    the prompts of all requests in flight, this one included.
    """

    overlap_weight: float = 1.0
    """Tokens of decoding that a token of prefill counts for; the study's better setting is 4."""

    def __post_init__(self) -> None:
        check_option("overlap-weight", self.overlap_weight)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        ranked = []
        for one in candidates:
            uncached = request.prompt_tokens - one.cached
            prefill = self.overlap_weight * (one.load.waiting_uncached_tokens + uncached)
            decode = float(one.load.context_tokens + request.prompt_tokens)
            ranked.append(Ranked(one, prefill + decode, (("prefill", prefill), ("decode", decode))))
        return in_order(ranked, rng)
