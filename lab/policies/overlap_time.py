"""The policy of the least time to first token plus a cost of the requests in flight."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option


@dataclass(frozen=True, slots=True)
class OverlapTime:
    """Dynamo's cost with predicted prefill times.

    The cost is in seconds: the wait for booked work, which shrinks as it is computed, this prompt's
    prefill, and `per_token` for each prompt token of the requests in flight.
    """

    costs_seconds: ClassVar[bool] = True
    per_token: float = 70e-6
    """Seconds that each token in flight counts for."""

    def __post_init__(self) -> None:
        check_option("per-token", self.per_token)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del request, rng
        return Costs.sum_of(
            ("wait", columns.load.wait),
            ("prefill", columns.prefill),
            ("decode", self.per_token * columns.load.context_tokens),
        )
