"""The figures of all candidates of a pick as columns: one array per figure, one element per candidate.

Making an object per candidate takes microseconds, and a fleet may have thousands of ranks, so objects
are made only for the few options that are accessed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from warmpath.scorer.load_columns import Column, LoadColumns


class Columns(NamedTuple):
    """The figures of `scorer.candidate.Candidate`, by its names; at least one candidate."""

    names: Sequence[tuple[str, int]]
    """Pod and rank of each candidate."""
    load: LoadColumns
    cached: Column
    prefill: Column
    slowness: Column
    arriving: Column
    known_tokens: Callable[[], Column]
    """Returns the number of tokens that each rank holds, of all prompts; slow."""
    session: int | None = None
    """The index of the rank of the session's last request; None if it is not a candidate."""


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
