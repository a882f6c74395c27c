"""From costs to an order: the tie rule that all policies share.

The least cost first; among equal costs fewer requests in flight, then more tokens cached, then one
drawn at random. Never the order in which candidates were given.
"""

from collections.abc import Iterable
from random import Random

from scorer.candidate import Ranked


def in_order(ranked: Iterable[Ranked], rng: Random) -> list[Ranked]:
    """Return the candidates, best first."""
    draw = rng.random

    def key(one: Ranked) -> tuple[float, int, int, float]:
        candidate = one.candidate
        return rounded(one.cost), candidate.load.in_flight, -candidate.cached, draw()

    return sorted(ranked, key=key)


def rounded(cost: float) -> float:
    """Return the cost to nine digits: sums of the same terms in another order differ by less."""
    return float(f"{cost:.9g}")
