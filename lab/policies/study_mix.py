"""The policy that the policy study (`lab.simulate.study`) recommended."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option

HIGHEST_UTILISATION = 0.95
"""Cap of the utilisation, since the weight of work diverges at 1."""


@dataclass(frozen=True, slots=True)
class StudyMix:
    """The study's `own_mix`; with g = 0 its `own_rho`.

    cost = (wait + alpha x prefill + mu x requests) x (1 + requests)^g, in seconds, with requests in
    flight and alpha = 1 + kappa x rho / (1 - rho) at the fleet's utilisation rho. A busier fleet gives
    more weight to work that a warmer pod would save; the power lets long prompts share queues. The
    term `crowding` is the power's part of the cost.
    """

    costs_seconds: ClassVar[bool] = True
    kappa: float = 1.0
    mu: float = 0.002
    """Seconds per request in flight."""
    g: float = 0.15

    def __post_init__(self) -> None:
        check_option("kappa", self.kappa)
        check_option("mu", self.mu)
        check_option("g", self.g, highest=2.0)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        rho = min(request.utilisation, HIGHEST_UTILISATION)
        alpha = 1 + self.kappa * rho / (1 - rho)
        wait, in_flight = columns.load.wait, columns.load.in_flight
        prefill, requests = alpha * columns.prefill, self.mu * in_flight
        alone = wait + prefill + requests
        cost = alone * (1.0 + in_flight) ** self.g
        terms = (("wait", wait), ("prefill", prefill), ("requests", requests))
        return Costs(cost, (*terms, ("crowding", cost - alone)))
