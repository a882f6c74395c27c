"""From costs to an order: the tie rule that all policies share.

The least cost first; among equal costs fewer requests in flight, then more tokens cached, then one
drawn at random. Never the order in which candidates were given.
"""

import math
from collections.abc import Sequence
from random import Random

import numpy as np

from scorer.columns import Columns, Costs
from scorer.load_columns import Column

DIGITS = 30
"""Binary digits that two costs must share to be equal: nine decimal ones."""


def order_of(costs: Costs, columns: Columns, rng: Random) -> Sequence[int]:
    """Return the candidates' places, best first."""
    draws = np.array([rng.random() for _ in columns.names])
    keys = (draws, -columns.cached, columns.load.in_flight, rounded(costs.cost))
    order: list[int] = np.lexsort(keys).tolist()
    return order


def rounded(cost: Column) -> Column:
    """Return costs to nine digits: sums of the same terms in another order differ by less."""
    mantissa, exponent = np.frexp(cost)
    found: Column = np.ldexp(np.rint(np.ldexp(mantissa, DIGITS)), exponent - DIGITS)
    return found


def rounded_one(cost: float) -> float:
    """Return one cost as `rounded` does."""
    mantissa, exponent = math.frexp(cost)
    return math.ldexp(round(math.ldexp(mantissa, DIGITS)), exponent - DIGITS)
