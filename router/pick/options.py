"""The weighed candidates of a pick, best first, stored as columns; objects are made on access."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, overload

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.trust import Trust
from warmpath.router.match.match import Matches
from warmpath.router.pick.eligible import Field, Seat
from warmpath.scorer.candidate import Candidate, Load
from warmpath.scorer.columns import CACHED, FACTOR, LOADS, PREFILL, Figures
from warmpath.scorer.match import NOTHING, Match

MOST_CANDIDATES = 8
"""Most candidates in the answer to a pick, the picked one included, and the ones that are remembered in
case the request does not go to the first. Making all of a fleet's would take longer than weighing them,
and no gateway tries more fall-backs."""


AVERAGE_CACHED, CHEAPEST, WARMEST, FULLEST = range(4, 8)
"""Places of what the weighing found besides: the mean of cached tokens; and the indices of candidates
with the shortest prefill, with most of the prompt, and with most by its events, of equals the first."""


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


class Candidates(Sequence[Option]):
    """Some weighed candidates, best first, with no more than what is told of them: kept for a while."""

    def __init__(
        self,
        seats: Sequence[Seat],
        figures: Figures,
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
        cached, prefill, slowness, arriving, displaced, factor, cost, *terms = self.figures[
            LOADS:, at
        ].tolist()
        seat = self.seats[at]
        shared = self.shared * factor
        return Option(
            Candidate(
                *seat.name, int(cached), prefill, load, slowness, arriving, displaced, shared
            ),
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
        figures: Figures,
        order: Sequence[int],
        found: Sequence[float],
        *,
        terms: Sequence[str],
        matches: Matches,
        shared: float = 0.0,
    ) -> None:
        """`figures` are in field order, `order` is best first; `found` as `compiled.weigh` fills it.

        `terms` are the names of the costs' terms. `shared` is the seconds of the prefill that are shared
        on a rank with the factor 1.
        """
        self.field = field
        self.figures = figures
        self.matches = matches
        self.order = order
        self.found = found
        self.shared = shared
        self._terms = terms

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
        field, matches = self.field, self.matches
        ranks = [field.ranks[place] for place in places]
        return Candidates(
            [field.seats[place] for place in places],
            self.figures.take(places, 1),
            [matches.get(rank, NOTHING) for rank in ranks],
            [*map(matches.trust, ranks)],
            terms=self._terms,
            shared=self.shared,
        )

    @property
    def best(self) -> RankName:
        """The name of the first one."""
        return self.field.names[self.order[0]]

    @property
    def factor(self) -> float:
        """The calibration factor of the first one."""
        return self.figures.item(FACTOR, self.order[0])

    @property
    def own(self) -> float:
        """The seconds of the first one's prefill by which it delays others (`Candidate.own`)."""
        return self.figures.item(PREFILL, self.order[0]) - self.shared * self.factor

    def cheapest(self) -> tuple[float, int]:
        """Return the least seconds of prefill of all candidates, and that candidate's cached tokens."""
        place = int(self.found[CHEAPEST])
        return self.figures.item(PREFILL, place), int(self.figures.item(CACHED, place))

    def average_cached(self) -> int:
        """Return the mean number of cached tokens of a candidate, rounded."""
        return round(self.found[AVERAGE_CACHED])

    @property
    def warmest(self) -> int:
        """The place of the option that holds most of the prompt, believed blocks included."""
        return int(self.found[WARMEST])

    @property
    def fullest(self) -> int:
        """The place of the option that holds most of the prompt by its events alone."""
        return int(self.found[FULLEST])

    def match(self, place: int) -> Match:
        return self.matches.get(self.field.ranks[place], NOTHING)

    @cached_property
    def kept(self) -> Candidates:
        """The best options, and the `warmest` after them if it is none of them."""
        best = self.order[:MOST_CANDIDATES]
        return self.at(best if self.warmest in best else [*best, self.warmest])
