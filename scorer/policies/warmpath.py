"""Our own: seconds of work that a pick makes, so that a warm pod is used and never drowns."""

from dataclasses import dataclass
from random import Random

import numpy as np

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.option import check_option

HIGHEST_UTILISATION = 0.95
"""Above it the weight of work would run away."""


@dataclass(frozen=True, slots=True)
class Warmpath:
    """The cost is in seconds, the sum of these terms; each only grows with what it is made of.

    wait: until a new prefill would start; less by `sharing` times the prefill that is under way here of
    a prompt that begins alike, or times the wait if that is less. To wait for it takes as long as to
    compute it elsewhere, and costs nobody anything.
    prefill: this prompt's.
    others: what this prefill costs the requests that come after it: kappa x rho / (1 - rho) times
    itself at the fleet's utilisation rho, as in a queue; more of it on a rank that is more crowded
    than the mean, since those behind it are more, and less on an emptier one. Crowded is
    ((1 + waiting) / (1 + mean waiting) x (1 + decoding) / (1 + mean decoding)) ^ g.
    decode: mu for each request in flight, which this prompt's prefill holds up.
    session: what leaving the session's pod costs, where it is among the candidates.
    hot_spot: above load_margin x the mean requests in flight + load_slack, as much as the dearest
    of those within and a second for each request too many. So one of those within wins.

    It began as `own_mix` of `shared/bench/policy-study.md`, whose crowding multiplies the wait too.
    """

    kappa: float = 2.0
    g: float = 0.3
    """0: only the fleet's utilisation counts, best for the longest waits (p99); more keeps long prompts
    off crowded ranks, so that most wait less (p90)."""
    mu: float = 0.002
    """Seconds for a request in flight."""
    sharing: float = 0.25
    """0: of requests of one prompt that come at once, each computes it on a pod of its own."""
    session_margin: float = 0.1
    """Seconds: a session stays where it is unless that costs so much more."""
    load_margin: float = 1.5
    load_slack: float = 16.0
    """Requests: what chance piles up on a fleet that has little to do."""

    def __post_init__(self) -> None:
        check_option("kappa", self.kappa)
        check_option("g", self.g, highest=2.0)
        check_option("mu", self.mu)
        check_option("sharing", self.sharing, highest=1.0)
        check_option("session-margin", self.session_margin)
        check_option("load-margin", self.load_margin, lowest=1.0)
        check_option("load-slack", self.load_slack)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the seconds of work that each would make of this prompt."""
        del rng
        rho = min(request.utilisation, HIGHEST_UTILISATION)
        weight = self.kappa * rho / (1 - rho)
        load, in_flight = columns.load, columns.load.in_flight
        number = len(columns.names)
        mean, mean_waiting = float(in_flight.sum()) / number, float(load.waiting.sum()) / number
        usual = (1 + mean_waiting) * (1 + max(0.0, mean - mean_waiting))
        limit = self.load_margin * mean + self.load_slack

        wait = load.wait - self.sharing * np.minimum(columns.arriving, load.wait)
        crowd = (1 + load.waiting) * (1 + np.maximum(0.0, in_flight - load.waiting)) / usual
        others = weight * columns.prefill / columns.slowness * crowd**self.g
        session = np.zeros_like(wait)
        if columns.session is not None:
            session += self.session_margin
            session[columns.session] = 0.0
        alone = Costs.sum_of(
            ("wait", wait),
            ("prefill", columns.prefill),
            ("others", others),
            ("decode", self.mu * in_flight),
            ("session", session),
        )
        excess = in_flight - limit
        within = float(alone.cost[excess <= 0].max(initial=0.0))
        hot_spot = np.where(excess > 0, within + excess, 0.0)
        return Costs(alone.cost + hot_spot, (*alone.terms, ("hot_spot", hot_spot)))
