"""Seconds until the first token, and what is decoded meanwhile."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.option import check_option


@dataclass(frozen=True, slots=True)
class OverlapTime:
    """Dynamo's cost with its predicted prefill times (`dynamo_aic` in `shared/bench/policy-study.md`).

    The cost is in seconds: the wait for what is booked, which shrinks as it is computed, this prompt's
    prefill, and the prompts of all requests in flight, each token as if it were to be computed.
    """

    per_token: float = 70e-6
    """Seconds that a token in flight counts for."""

    def __post_init__(self) -> None:
        check_option("per-token", self.per_token)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the seconds until the first token, and those of the tokens in flight."""
        del request, rng
        return Costs.sum_of(
            ("wait", columns.load.wait),
            ("prefill", columns.prefill),
            ("decode", self.per_token * columns.load.context_tokens),
        )
