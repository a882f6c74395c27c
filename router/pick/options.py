"""The candidates of a pick as they were weighed, best first: few as objects, many as columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np

from indexer.rank import Rank
from indexer.trust import Trust
from router.pick.scorer import NOTHING
from router.pods.table import Pod
from scorer.candidate import Candidate, Load
from scorer.columns import Column, Columns, Costs
from scorer.match import Match
from scorer.reason import GUARD, SESSION


class Option(NamedTuple):
    """A candidate as it was weighed, with the pod and rank that `Candidate`, scorer's, only names."""

    pod: Pod
    rank: Rank
    match: Match
    trust: Trust
    candidate: Candidate
    cost: float
    terms: tuple[tuple[str, float], ...]
    calibration: float

    @property
    def predicted_ttft(self) -> float:
        """Seconds until the first token."""
        return self.candidate.load.wait + self.candidate.prefill


class FewOptions(list[Option]):
    """Options that were made at once."""

    def warmest(self) -> Option:
        """Return the one that holds most of the prompt, known or believed."""
        return max(self, key=lambda one: one.match.matched_tokens)

    def fullest(self) -> Option:
        """Return the one that is known to hold most of the prompt."""
        return max(self, key=lambda one: one.match.known_tokens)

    def telling(self) -> Sequence[Option]:
        """Return all."""
        return self

    def has_ranks(self) -> bool:
        """Whether several are of one pod."""
        return len({one.candidate.pod for one in self}) < len(self)


@dataclass(frozen=True, slots=True)
class Field:
    """The ranks of some pods, and what does not change of them."""

    of: Sequence[Pod]
    pods: Sequence[Pod]
    """Of each rank."""
    ranks: Sequence[Rank]
    names: Sequence[tuple[str, int]]
    """Pod and number of each rank."""
    places: Mapping[Rank, int]
    has_ranks: bool
    """Whether several are of one pod."""


def field_of(pods: Sequence[Pod]) -> Field:
    """Return the ranks of these pods."""
    both = [(pod, rank) for pod in pods for rank in pod.ranks]
    ranks = [rank for _, rank in both]
    return Field(
        list(pods),
        [pod for pod, _ in both],
        ranks,
        [(pod.id, rank.number) for pod, rank in both],
        {rank: place for place, rank in enumerate(ranks)},
        len({pod.id for pod, _ in both}) < len(both),
    )


class ManyOptions(Sequence[Option]):
    """Options that are made when they are asked for, from columns. Their trust is that of then."""

    def __init__(
        self,
        field: Field,
        columns: Columns,
        costs: Costs,
        order: Sequence[int],
        *,
        matches: Mapping[Rank, Match],
        rests: Sequence[Load],
        factors: Sequence[float],
    ) -> None:
        """Take columns as the weigher has filled them; `order` are the candidates' places, best first.

        `rests` are loads that lack only the wait.
        """
        self._field = field
        self._columns = columns
        self._costs = costs
        self._order = order
        self._matches = matches
        self._rests = rests
        self._factors = factors

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, at: int) -> Option: ...
    @overload
    def __getitem__(self, at: slice) -> list[Option]: ...
    def __getitem__(self, at: int | slice) -> Option | list[Option]:
        if isinstance(at, slice):
            return [self._option(place) for place in self._order[at]]
        return self._option(self._order[at])

    def _option(self, place: int) -> Option:
        field, columns, costs = self._field, self._columns, self._costs
        rank, (pod, number) = field.ranks[place], field.names[place]
        wait, rest = float(columns.wait[place]), self._rests[place]
        return Option(
            field.pods[place],
            rank,
            self._matches.get(rank, NOTHING),
            rank.trust,
            Candidate(
                pod,
                number,
                int(columns.cached[place]),
                float(columns.prefill[place]),
                rest if wait == rest.wait else rest._replace(wait=wait),
                is_session=place == columns.session,
                slowness=float(columns.slowness[place]),
                arriving=float(columns.arriving[place]),
            ),
            float(costs.cost[place]),
            tuple((name, float(term[place])) for name, term in costs.terms),
            self._factors[place],
        )

    def put_first(self, name: tuple[str, int]) -> None:
        """Put a candidate before all others, if it is one."""
        names = self._field.names
        self._order = sorted(self._order, key=lambda place: names[place] != name)

    def warmest(self) -> Option:
        """Return the one that holds most of the prompt, known or believed."""
        return self._option(self._holding_most(lambda match: match.matched_tokens))

    def fullest(self) -> Option:
        """Return the one that is known to hold most of the prompt."""
        return self._option(self._holding_most(lambda match: match.known_tokens))

    def telling(self) -> Sequence[Option]:
        """Return those that the reason may name: the best two, the warmest, whom a term keeps back."""
        places = {*self._order[:2], self._holding_most(lambda match: match.matched_tokens)}
        order = np.array(self._order)
        for name, term in self._costs.terms:
            if name in {GUARD, SESSION}:
                charged = order[term[order] != 0]
                if len(charged):
                    without: Column = self._costs.cost[charged] - term[charged]
                    places.add(int(charged[without.argmin()]))
        return [self._option(place) for place in self._order if place in places]

    def has_ranks(self) -> bool:
        """Whether several are of one pod."""
        return self._field.has_ranks

    def _holding_most(self, tokens: Callable[[Match], int]) -> int:
        """Return the place of the one whose match has most tokens, the best of those."""
        places, most, best = self._field.places, 0, set[int]()
        for rank, match in self._matches.items():
            held = tokens(match)
            if held > most:
                most, best = held, set[int]()
            if held == most:
                best.add(places[rank])
        return next(place for place in self._order if not most or place in best)


Options = FewOptions | ManyOptions
