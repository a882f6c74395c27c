"""The figures of all candidates of a pick as columns: an array each, a place in it for each candidate.

An object and its terms take microseconds to make, and a fleet may have thousands of ranks. Only the
few options that somebody asks for are made into objects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from scorer.load_columns import Column, LoadColumns


@dataclass(frozen=True, slots=True)
class Columns:
    """The figures of `scorer.candidate.Candidate`, by its names; at least one candidate."""

    names: Sequence[tuple[str, int]]
    """Pod and rank."""
    load: LoadColumns
    cached: Column
    prefill: Column
    slowness: Column
    arriving: Column
    known_tokens: Callable[[], Column]
    """Counts the tokens that each rank is known to hold, of any prompt; that takes long."""
    session: int | None = None
    """The place of the rank where the session's last request went; None where it is none of them."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of each candidate, and its parts by name."""

    cost: Column
    """Less is better; the unit is the policy's."""
    terms: tuple[tuple[str, Column], ...] = ()

    @classmethod
    def sum_of(cls, *terms: tuple[str, Column]) -> Self:
        """Return costs that are the sums of these terms."""
        cost = terms[0][1]
        for _, term in terms[1:]:
            cost = cost + term
        return cls(cost, terms)
