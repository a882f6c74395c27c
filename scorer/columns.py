"""Columns: the figures of very many candidates, an array each, instead of an object for each rank.

An object and its terms take microseconds to make. Of thousands of candidates only the best few are ever
told, so only of those are they made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scorer.candidate import Request
from scorer.order import rounded

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """The figures of `Candidate` and its `Load`, by these names; a place in each is one candidate's."""

    cached: Column
    prefill: Column
    slowness: Column
    arriving: Column
    wait: Column
    waiting: Column
    in_flight: Column
    session: int | None = None
    """The place of the session's rank; None where it is none of them."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the candidates cost, and what that is made of, as in `Ranked`."""

    cost: Column
    terms: tuple[tuple[str, Column], ...]


@runtime_checkable
class ColumnPolicy(Protocol):
    """A policy that knows columns too: their costs are to the last bit those of `rank`."""

    def costs(self, request: Request, columns: Columns) -> Costs:
        """Return what each candidate costs."""


def order_of(costs: Costs, columns: Columns, rng: Random) -> Sequence[int]:
    """Return the places, best first, by the rule of `scorer.order`: the draws are the same, too."""
    values, places = np.unique(costs.cost, return_inverse=True)
    cost = np.array([rounded(value) for value in values.tolist()])[places]
    draw = rng.random
    draws = np.array([draw() for _ in range(len(cost))])
    order: list[int] = np.lexsort((draws, -columns.cached, columns.in_flight, cost)).tolist()
    return order
