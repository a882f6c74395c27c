"""Beliefs, and the slots that they have in an index of their own."""

import heapq
from typing import Literal, NamedTuple

from warmpath.indexer.index.contract import Index


class Belief(NamedTuple):
    """A rank, and the kind of belief about its blocks (`indexer.believed.beliefs`)."""

    pod: str
    rank: int
    kind: Literal["arriving", "assumed"]


class BeliefSlots:
    """Gives each belief that holds anything a slot in `index`, the smallest free one.

    A belief without blocks has no slot, so that a rank without beliefs leaves nothing behind.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._beliefs: list[Belief | None] = []
        self._free: list[int] = []
        """A heap of slots without blocks in the index."""
        self._dropped: set[int] = set()

    def claim(self, belief: Belief) -> int:
        if not self._free:
            self._beliefs.append(belief)
            return len(self._beliefs) - 1
        slot = heapq.heappop(self._free)
        self._beliefs[slot] = belief
        return slot

    def release(self, slot: int) -> None:
        """Free a slot that holds no blocks in the index, for the next belief."""
        self._beliefs[slot] = None
        heapq.heappush(self._free, slot)

    def drop(self, slot: int) -> None:
        """Empty a slot and forget its belief; the slot is given back when it is swept."""
        self._beliefs[slot] = None
        self._dropped.add(slot)
        self.index.drop(slot)

    def sweep(self, budget: int) -> None:
        """Sweep up to `budget` keys of the index; free the dropped slots that are wholly swept."""
        for slot in self.index.sweep(budget):
            self._dropped.remove(slot)
            heapq.heappush(self._free, slot)

    def belief(self, slot: int) -> Belief | None:
        return self._beliefs[slot]
