"""The least outstanding work, and no look at caches."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.option import check_option


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """The fewest prompt tokens that wait for their prefill, and a little for each request in flight.

    The cost is in tokens. Every load balancer's rule; the weights are those of
    `shared/bench/policy-study.md`.
    """

    per_request: float = 200.0
    """Tokens that a request in flight counts for."""

    def __post_init__(self) -> None:
        check_option("per-request", self.per_request)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the work that each has to do already."""
        del request, rng
        return Costs.sum_of(
            ("waiting", columns.load.waiting_prompt_tokens),
            ("requests", self.per_request * columns.load.in_flight),
        )
