"""The least outstanding work, and no look at caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order


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

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least loaded first."""
        del request
        ranked = []
        for one in candidates:
            waiting = float(one.load.waiting_prompt_tokens)
            requests = self.per_request * one.load.in_flight
            ranked.append(
                Ranked(one, waiting + requests, (("waiting", waiting), ("requests", requests)))
            )
        return in_order(ranked, rng)
