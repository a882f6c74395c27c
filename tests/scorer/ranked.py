"""Applies a policy to candidates that a test has made as objects."""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.columns import (
    CACHED,
    COST,
    IN_FLIGHT,
    TERMS,
    Columns,
    Costs,
    Figures,
    LoadColumns,
)
from warmpath.scorer.policy import Policy
from warmpath.scorer.weigh import DRAW, ROUNDED, put_in_order, rounded


class Ranked(NamedTuple):
    """A candidate, its cost, and the cost's parts."""

    candidate: Candidate
    cost: float
    terms: tuple[tuple[str, float], ...] = ()


def rank(
    policy: Policy,
    request: Request,
    candidates: Sequence[Candidate],
    rng: Random,
    known: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> list[Ranked]:
    """Return the candidates as a policy orders them, best first; `known` is (pod, rank) -> known tokens."""
    columns = figures(candidates, known)
    return ranked(policy.costs(request, columns, rng), columns, candidates, rng)


def ranked(
    costs: Costs, columns: Columns, candidates: Sequence[Candidate], rng: Random
) -> list[Ranked]:
    """Return the candidates by these costs, best first."""
    figures = np.zeros((TERMS, len(candidates)))
    figures[CACHED], figures[IN_FLIGHT], figures[COST] = (
        columns.cached, columns.load.in_flight, costs.cost,
    )  # fmt: skip
    return [
        Ranked(
            candidates[place],
            float(costs.cost[place]),
            tuple((name, float(term[place])) for name, term in costs.terms),
        )
        for place in order_of(figures, rng)
    ]


def order_of(figures: Figures, rng: Random) -> list[int]:
    """Return the indices of candidates, best first."""
    number = figures.shape[1]
    keys, order = np.empty((2, number)), np.empty((2, number), np.int64)
    keys[DRAW] = [rng.random() for _ in range(number)]
    keys[ROUNDED] = [*map(rounded, figures[COST])]
    put_in_order(figures, keys, order)
    found: list[int] = order[0].tolist()
    return found


def columns_of(loads: Sequence[Load]) -> LoadColumns:
    """Return these loads as columns, in this order."""
    return LoadColumns(*np.array(loads, np.float64).reshape(len(loads), -1).T)


def figures(
    candidates: Sequence[Candidate], known: Mapping[tuple[str, int], int] = MappingProxyType({})
) -> Columns:
    """Return the figures of candidates."""
    names = [(one.pod, one.rank) for one in candidates]

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(one, name) for one in candidates], dtype=np.float64)

    return Columns(
        names,
        columns_of([one.load for one in candidates]),
        cached=column("cached"),
        prefill=column("prefill"),
        slowness=column("slowness"),
        arriving=column("arriving"),
        displaced=column("displaced"),
        known_tokens=lambda: np.array([known.get(name, 0) for name in names], dtype=np.float64),
    )
