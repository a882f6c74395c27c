"""What the policy study recommended."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order

HIGHEST_UTILISATION = 0.95
"""Above it the weight of work would run away."""


@dataclass(frozen=True, slots=True)
class StudyMix:
    """`own_mix` of `shared/bench/policy-study.md`, "Recommended default"; with g = 0 its `own_rho`.

    cost = (wait + alpha x prefill + mu x requests) x (1 + requests)^g, in seconds, with requests in
    flight and alpha = 1 + kappa x rho / (1 - rho) at the fleet's utilisation rho. The fuller the fleet,
    the dearer work that a warmer pod would not have; the power lets long prompts share queues. What
    the power adds is the term `crowding`.
    """

    kappa: float = 1.0
    mu: float = 0.002
    """Seconds for a request in flight."""
    g: float = 0.15

    def __post_init__(self) -> None:
        check_option("kappa", self.kappa)
        check_option("mu", self.mu)
        check_option("g", self.g, highest=2.0)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        rho = min(request.utilisation, HIGHEST_UTILISATION)
        alpha = 1 + self.kappa * rho / (1 - rho)
        ranked = []
        for one in candidates:
            prefill = alpha * one.prefill
            requests = self.mu * one.load.in_flight
            alone = one.load.wait + prefill + requests
            cost = alone * (1.0 + one.load.in_flight) ** self.g
            terms = (
                ("wait", one.load.wait),
                ("prefill", prefill),
                ("requests", requests),
                ("crowding", cost - alone),
            )
            ranked.append(Ranked(one, cost, terms))
        return in_order(ranked, rng)
