"""The weighed candidates of a pick, best first, stored as columns; objects are made on access."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.trust import Trust
from warmpath.router.match.match import Matches
from warmpath.router.pick.eligible import Field
from warmpath.scorer.candidate import Candidate
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.match import NOTHING, Match

MOST_CANDIDATES = 8
"""Most candidates in the answer to a pick, the picked one included, and the ones that are remembered in
case the request does not go to the first. Making all of a fleet's would take longer than weighing them,
and no gateway tries more fall-backs."""
AT_ONCE = 8
"""Candidates that are made at once while they are iterated over."""


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


class Options(Sequence[Option]):
    """A sequence of options, made on access; their trust is that of the look-up, or else the current."""

    def __init__(
        self,
        field: Field,
        columns: Columns,
        costs: Costs,
        order: Sequence[int],
        *,
        matches: Matches,
        factors: Sequence[float],
        shared: float = 0.0,
    ) -> None:
        """`columns`, `costs` and `factors` (calibrations) are in field order; `order` is best first.

        `shared` is the seconds of the prefill that are shared on a rank with the factor 1.
        """
        self.field = field
        self.matches = matches
        self._columns = columns
        self._costs = costs
        self._order = order
        self._factors = factors
        self.shared = shared
        self._made: dict[int, Option] = {}

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, at: int) -> Option: ...
    @overload
    def __getitem__(self, at: slice) -> list[Option]: ...
    def __getitem__(self, at: int | slice) -> Option | list[Option]:
        if isinstance(at, slice):
            return self._all_of(self._order[at])
        return self._option(self._order[at])

    def __iter__(self) -> Iterator[Option]:
        """Yield the options, best first; some are made at once, which is faster than one by one."""
        for at in range(0, len(self), AT_ONCE):
            yield from self[at : at + AT_ONCE]

    def expectations(self) -> NDArray[np.float64]:
        """Return four rows over all candidates: cached tokens, wait (s), prefill (s), calibration."""
        columns = self._columns
        return np.array([columns.cached, columns.load.wait, columns.prefill, self._factors])

    def cheapest(self) -> tuple[float, int]:
        """Return the least seconds of prefill of all candidates, and that candidate's cached tokens."""
        columns = self._columns
        place = int(columns.prefill.argmin())
        return float(columns.prefill[place]), int(columns.cached[place])

    def average_cached(self) -> int:
        """Return the mean number of cached tokens of a candidate, rounded."""
        return round(float(self._columns.cached.mean()))

    def warmest(self) -> Option:
        """Return the option that holds most of the prompt, believed blocks included."""
        return self._option(self._holding_most(lambda match: match.matched_tokens))

    def fullest(self) -> Option:
        """Return the option that holds most of the prompt by its events, without believed blocks."""
        return self._option(self._holding_most(lambda match: match.known_tokens))

    def for_reason(self) -> Sequence[Option]:
        """Return the options that a reason may name: the best two, and the `warmest`."""
        places = {*self._order[:2], self._holding_most(lambda match: match.matched_tokens)}
        return self._all_of(sorted(places, key=self._order.index))

    @cached_property
    def _distinct(self) -> Collection[Match]:
        """The matches, each once: many ranks hold the same blocks of a prompt and share one match."""
        return {id(match): match for match in self.matches.values()}.values()

    def _option(self, place: int) -> Option:
        made = self._made.get(place)
        return made or self._all_of([place])[0]

    def _all_of(self, places: Sequence[int]) -> list[Option]:
        made = self._made
        missing = [place for place in places if place not in made]
        if missing:
            made.update(zip(missing, self._make(missing), strict=True))
        return [made[place] for place in places]

    def _make(self, places: Sequence[int]) -> Iterator[Option]:
        field, columns, costs = self.field, self._columns, self._costs
        names = [name for name, _ in costs.terms]
        figures = [
            columns.cached,
            columns.prefill,
            columns.slowness,
            columns.arriving,
            costs.cost,
            *(term for _, term in costs.terms),
        ]
        # Taking all columns at once is faster than one column, or one value, at a time.
        at = np.array(places)
        rows = np.array(figures)[:, at].T.tolist()
        for place, row, load in zip(places, rows, columns.load.at(at), strict=True):
            cached, prefill, slowness, arriving, cost, *terms = row
            pod, rank, factor = field.pods[place], field.ranks[place], self._factors[place]
            name, shared = field.names[place], self.shared * factor
            yield Option(
                Candidate(*name, int(cached), prefill, load, slowness, arriving, shared),
                self.matches.get(rank, NOTHING),
                self.matches.trust(rank),
                cost,
                tuple(zip(names, terms, strict=True)),
                factor,
                pod.address,
                pod.serves,
                pod.first_rank + rank.number,
                len(pod.ranks) == 1,
            )

    def _holding_most(self, tokens: Callable[[Match], int]) -> int:
        """Return the field's index of the option with most `tokens`; among equals, the best one."""
        ranks, matches = self.field.ranks, self.matches
        most = max(map(tokens, self._distinct), default=0)
        holders = (
            place for place in self._order if tokens(matches.get(ranks[place], NOTHING)) == most
        )
        return next(holders, self._order[0]) if most else self._order[0]
