"""Orders candidates by cost, with the tie rule that all policies share.

The least cost comes first; among equal costs fewer requests in flight, then more cached tokens, then a
random draw. The order in which candidates were given never matters.
"""

import math
from collections.abc import Sequence
from itertools import repeat, starmap
from random import Random

import numpy as np

from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.load_columns import Column

DIGITS = 30
"""Number of binary digits of costs that are compared: nine decimal digits."""


def order_of(costs: Costs, columns: Columns, rng: Random) -> Sequence[int]:
    """Return the candidates' indices, best first."""
    # No loop of Python's own: there may be thousands of candidates.
    draws = np.fromiter(starmap(rng.random, repeat((), len(columns.names))), np.float64)
    keys = (draws, -columns.cached, columns.load.in_flight, rounded(costs.cost))
    order: list[int] = np.lexsort(keys).tolist()
    return order


def rounded(cost: Column) -> Column:
    """Return costs rounded to nine decimal digits, so that equal sums in another order are equal."""
    mantissa, exponent = np.frexp(cost)
    found: Column = np.ldexp(np.rint(np.ldexp(mantissa, DIGITS)), exponent - DIGITS)
    return found


def rounded_one(cost: float) -> float:
    """Return one cost, rounded as by `rounded`."""
    mantissa, exponent = math.frexp(cost)
    return math.ldexp(round(math.ldexp(mantissa, DIGITS)), exponent - DIGITS)
