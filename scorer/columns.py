"""The figures of all candidates of a pick as columns: one array per figure, one element per candidate.

Making an object per candidate takes microseconds, and a fleet may have thousands of ranks, so objects
are made only for the few options that are accessed.

All columns of a pick are the rows of one array, `Figures`. The functions that fill it are plain Python
over arrays, so that `router.pick.compiled` can compile them; each loops over the candidates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from warmpath.scorer.candidate import Load

Column = NDArray[np.float64]

Figures = NDArray[np.float64]
"""A row for each of FIGURES and of the cost's terms, and a column for each candidate."""

FIGURES = (
    *Load._fields,
    "cached",
    "prefill",
    "slowness",
    "arriving",
    "displaced",
    "factor",
    "cost",
)
LOADS = len(Load._fields)
"""The number of the FIGURES of a load, which are the first."""
WAIT, WAITING, IN_FLIGHT, KV_USAGE = map(
    Load._fields.index, ("wait", "waiting", "in_flight", "kv_usage")
)
CACHED, PREFILL, SLOWNESS, ARRIVING, DISPLACED, FACTOR, COST, TERMS = range(LOADS, LOADS + 8)
"""Rows of figures; the terms follow the cost."""


class LoadColumns(NamedTuple):
    """The figures of `scorer.candidate.Load`, by its names; each column has one element per rank."""

    wait: Column
    waiting: Column
    in_flight: Column
    waiting_uncached_tokens: Column
    waiting_prompt_tokens: Column
    context_tokens: Column
    queue: Column
    kv_usage: Column
    last_pick: Column
    foreign_wait: Column


class Columns(NamedTuple):
    """The fields of one or more `scorer.candidate.Candidate`s as arrays, under the same names."""

    names: Sequence[tuple[str, int]]
    """Pod and rank of each candidate."""
    load: LoadColumns
    cached: Column
    prefill: Column
    slowness: Column
    arriving: Column
    displaced: Column
    known_tokens: Callable[[], Column]
    """Returns the number of tokens that each rank holds, of all prompts; slow."""


class Costs(NamedTuple):
    """The cost of each candidate, and the named terms that it consists of."""

    cost: Column
    """Lower is better; the policy defines the unit."""
    terms: tuple[tuple[str, Column], ...] = ()

    @classmethod
    def sum_of(cls, *terms: tuple[str, Column]) -> Self:
        """Return costs that are the sums of these terms."""
        cost = terms[0][1]
        for _, term in terms[1:]:
            cost = cost + term
        return cls(cost, terms)
