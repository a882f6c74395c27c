"""The policy of the least outstanding work, which ignores caches."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Minimises prompt tokens that wait for their prefill, plus a constant per request in flight.

    The cost is in tokens. Common load balancers have this rule; the weights are those of the policy
    study (`lab.simulate.study`).
    """

    per_request: float = 200.0
    """Tokens that each request in flight counts for."""

    def __post_init__(self) -> None:
        check_option("per-request", self.per_request)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the outstanding work of each candidate, in tokens."""
        del request, rng
        return Costs.sum_of(
            ("waiting", columns.load.waiting_prompt_tokens),
            ("requests", self.per_request * columns.load.in_flight),
        )
