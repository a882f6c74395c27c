"""Tokens to compute and tokens to decode over, added up."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.option import check_option


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

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the tokens to compute, weighted, and those to decode over."""
        del rng
        uncached = request.prompt_tokens - columns.cached
        return Costs.sum_of(
            ("prefill", self.overlap_weight * (columns.load.waiting_uncached_tokens + uncached)),
            ("decode", columns.load.context_tokens + request.prompt_tokens),
        )
