"""Keeps items sorted by a tuple that is given with each, its rank (no rank of a pod)."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Rank = tuple[Any, ...]


class Ranking(Generic[Item]):
    """Items sorted by their ranks, of which no two may be equal; iterates over (rank, item)."""

    def __init__(self) -> None:
        self._ranks: dict[Item, Rank] = {}
        self._order: list[tuple[Rank, Item]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[Rank, Item]]:
        return iter(self._order)

    def __getitem__(self, place: int) -> tuple[Rank, Item]:
        return self._order[place]

    @property
    def first(self) -> tuple[Rank, Item]:
        """The lowest rank, and its item. Raises IndexError if there is none."""
        return self._order[0]

    @property
    def last(self) -> Item:
        """The item of the highest rank. Raises IndexError if there is none."""
        return self._order[-1][1]

    def rank_of(self, item: Item) -> Rank:
        return self._ranks[item]

    def put(self, item: Item, rank: Rank) -> None:
        before = self._ranks.get(item)
        if before is not None:
            del self._order[bisect_left(self._order, (before,))]
        self._ranks[item] = rank
        insort(self._order, (rank, item))

    def drop(self, item: Item) -> None:
        rank = self._ranks.pop(item, None)
        if rank is not None:
            del self._order[bisect_left(self._order, (rank,))]
