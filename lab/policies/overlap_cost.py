"""The policy of the least sum of tokens to compute and context tokens of decoding."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option


@dataclass(frozen=True, slots=True)
class OverlapCost:
    """Dynamo's cost, in tokens instead of blocks.

    Prefill: tokens booked and not computed, this prompt included, times the weight. Decode: the prompt
    tokens of all requests in flight, this one included.
    """

    overlap_weight: float = 1.0
    """Weight of a token of prefill relative to one of decoding; 4 did better in the policy study."""

    def __post_init__(self) -> None:
        check_option("overlap-weight", self.overlap_weight)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        uncached = request.prompt_tokens - columns.cached
        return Costs.sum_of(
            ("prefill", self.overlap_weight * (columns.load.waiting_uncached_tokens + uncached)),
            ("decode", columns.load.context_tokens + request.prompt_tokens),
        )
