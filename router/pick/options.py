"""The weighed candidates of a pick, best first, stored as columns; objects are made on access."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.trust import Trust
from warmpath.router.match.match import Matches
from warmpath.router.pick.eligible import Field, Seat
from warmpath.scorer.candidate import Candidate, Load
from warmpath.scorer.columns import Column, Columns, Costs
from warmpath.scorer.match import NOTHING, Match

MOST_CANDIDATES = 8
"""Most candidates in the answer to a pick, the picked one included, and the ones that are remembered in
case the request does not go to the first. Making all of a fleet's would take longer than weighing them,
and no gateway tries more fall-backs."""


class Option(NamedTuple):
    """A weighed candidate. It holds no Pod and no Rank, since a kept decision may outlive them."""

    candidate: Candidate
    match: Match
    trust: Trust
    cost: float
    terms: tuple[tuple[str, float], ...]
    calibration: float
    address: str
    serves: bool
    """Whether its pod was healthy (`Pod.serves`)."""
    engine_rank: int
    """The number by which its engine knows the rank."""
    is_alone: bool
    """Whether its pod has no other rank."""

    @property
    def name(self) -> RankName:
        return RankName(self.candidate.pod, self.candidate.rank)

    @property
    def predicted_ttft(self) -> float:
        """Seconds until the first token."""
        return self.candidate.load.wait + self.candidate.prefill


LOADS = len(Load._fields)
FIGURES = (*Load._fields, "cached", "prefill", "slowness", "arriving", "factor", "cost")
"""The figures of a candidate: the LOADS first are its load's."""


class Candidates(Sequence[Option]):
    """Some weighed candidates, best first, with no more than what is told of them: kept for a while."""

    def __init__(
        self,
        seats: Sequence[Seat],
        figures: NDArray[np.float64],
        matches: Sequence[Match],
        trusts: Sequence[Trust],
        *,
        terms: Sequence[str],
        shared: float,
    ) -> None:
        """`figures` has a column for each candidate, and a row for each of FIGURES and of the terms.

        `terms` are the names of the costs' terms; `shared` is as in `Options`.
        """
        self.seats = seats
        self.figures = figures
        self.matches = matches
        self.trusts = trusts
        self._terms = terms
        self.shared = shared

    def __len__(self) -> int:
        return len(self.seats)

    @overload
    def __getitem__(self, at: int) -> Option: ...
    @overload
    def __getitem__(self, at: slice) -> list[Option]: ...
    def __getitem__(self, at: int | slice) -> Option | list[Option]:
        if isinstance(at, slice):
            return [self[place] for place in range(len(self))[at]]
        wait, *counts, kv_usage, last_pick, foreign = self.figures[:LOADS, at].tolist()
        load = Load._make((wait, *map(int, counts), kv_usage, int(last_pick), foreign))
        cached, prefill, slowness, arriving, factor, cost, *terms = self.figures[
            LOADS:, at
        ].tolist()
        seat = self.seats[at]
        shared = self.shared * factor
        return Option(
            Candidate(*seat.name, int(cached), prefill, load, slowness, arriving, shared),
            self.matches[at],
            self.trusts[at],
            cost,
            tuple(zip(self._terms, terms, strict=True)),
            factor,
            seat.address,
            seat.serves,
            seat.engine_rank,
            seat.is_alone,
        )


class Options(Sequence[Option]):
    """All weighed candidates; their trust is that of the look-up, or else the current one."""

    def __init__(
        self,
        field: Field,
        columns: Columns,
        costs: Costs,
        order: Sequence[int],
        *,
        matches: Matches,
        factors: Column,
        shared: float = 0.0,
    ) -> None:
        """`columns`, `costs` and `factors` (calibrations) are in field order; `order` is best first.

        `shared` is the seconds of the prefill that are shared on a rank with the factor 1.
        """
        self.field = field
        self.columns = columns
        self.matches = matches
        self.order = order
        self.factors = factors
        self.shared = shared
        self._costs = costs

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, at: int) -> Option: ...
    @overload
    def __getitem__(self, at: slice) -> Candidates: ...
    def __getitem__(self, at: int | slice) -> Option | Candidates:
        if isinstance(at, slice):
            return self.at(self.order[at])
        return self.at([self.order[at]])[0]

    def at(self, places: Sequence[int]) -> Candidates:
        """Return the candidates at these places of the field."""
        field, matches, columns, costs = self.field, self.matches, self.columns, self._costs
        rows = [
            *columns.load,
            columns.cached,
            columns.prefill,
            columns.slowness,
            columns.arriving,
            self.factors,
            costs.cost,
            *(term for _, term in costs.terms),
        ]
        ranks = [field.ranks[place] for place in places]
        return Candidates(
            [field.seats[place] for place in places],
            np.array(rows)[:, places],
            [matches.get(rank, NOTHING) for rank in ranks],
            [matches.trust(rank) for rank in ranks],
            terms=[name for name, _ in costs.terms],
            shared=self.shared,
        )

    @property
    def best(self) -> RankName:
        """The name of the first one."""
        return self.field.names[self.order[0]]

    @property
    def own(self) -> float:
        """The seconds of the first one's prefill by which it delays others (`Candidate.own`)."""
        place = self.order[0]
        return float(self.columns.prefill[place] - self.shared * self.factors[place])

    def cheapest(self) -> tuple[float, int]:
        """Return the least seconds of prefill of all candidates, and that candidate's cached tokens."""
        columns = self.columns
        place = int(columns.prefill.argmin())
        return float(columns.prefill[place]), int(columns.cached[place])

    def average_cached(self) -> int:
        """Return the mean number of cached tokens of a candidate, rounded."""
        return round(float(np.add.reduce(self.columns.cached)) / len(self))

    @cached_property
    def warmest(self) -> int:
        """The place of the option that holds most of the prompt, believed blocks included."""
        return self._holding_most(lambda match: match.matched_tokens)

    @cached_property
    def fullest(self) -> int:
        """The place of the option that holds most of the prompt by its events alone."""
        return self._holding_most(lambda match: match.known_tokens)

    def match(self, place: int) -> Match:
        return self.matches.get(self.field.ranks[place], NOTHING)

    @cached_property
    def kept(self) -> Candidates:
        """The best options, and the `warmest` after them if it is none of them."""
        best = self.order[:MOST_CANDIDATES]
        return self.at(best if self.warmest in best else [*best, self.warmest])

    def _holding_most(self, tokens: Callable[[Match], int]) -> int:
        """Return the place of the option with most `tokens`; among equals, the best one."""
        most = max(map(tokens, self.matches.values()), default=0)
        if not most:
            return self.order[0]
        return next(
            (place for place in self.order if tokens(self.match(place)) == most), self.order[0]
        )
