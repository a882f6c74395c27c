"""One rank's slots in the index: what it holds in each place of its present life."""

from collections.abc import Mapping

from indexer.engines.event import Tier
from indexer.group import Layout
from indexer.index import BrokenInvariantError, Index
from indexer.resolver import Added, Change, Gone, Spot
from indexer.slot import Place, SlotTable


class RankSlots:
    """Applies a rank's changes to the index: the sink of a router's `RankIngest`."""

    def __init__(self, pod: str, rank: int, index: Index, table: SlotTable) -> None:
        self._pod = pod
        self._rank = rank
        self._index = index
        self._table = table
        self._epoch = 0
        self._slots: dict[Spot, int] = {}

    def apply(self, change: Change) -> None:
        """Apply one change."""
        if isinstance(change, Added):
            self._index.add(self._slot(change.spot), change.keys)
        elif isinstance(change, Gone):
            self._index.remove(self._slot(change.spot), change.keys)
        else:
            self.empty()

    def _slot(self, spot: Spot) -> int:
        slot = self._slots.get(spot)
        if slot is None:
            tier, group = spot
            place = Place(self._pod, self._rank, tier, self._epoch, group)
            slot = self._slots[spot] = self._table.claim(place)
        return slot

    def empty(self) -> None:
        """Begin a new epoch: what the old one's slots held is gone for readers at once."""
        for slot in self._slots.values():
            self._table.retire(slot)
            self._index.drop(slot)
        self._slots.clear()
        self._epoch += 1

    def blocks(self, layout: Layout) -> dict[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""
        return {
            tier: self._index.count(slot)
            for (tier, group), slot in self._slots.items()
            if group == layout.shown
        }

    def check(self, held: Mapping[Spot, set[int]]) -> None:
        """Raise BrokenInvariantError where the index holds other keys than these."""
        for spot, slot in self._slots.items():
            keys = held.get(spot, set())
            if self._index.count(slot) != len(keys):
                raise BrokenInvariantError(f"slot {slot} holds another number of keys than {spot}")
            stretches = self._index.stretches(list(keys))
            if sum(stop - start for held, start, stop in stretches if held == slot) != len(keys):
                raise BrokenInvariantError(f"slot {slot} does not hold a key of {spot}")
        if any(keys for spot, keys in held.items() if spot not in self._slots):
            raise BrokenInvariantError("a place that holds keys has no slot")
