"""One rank's slots in the index: one for each place of its present life, and one for blocks in doubt."""

from dataclasses import replace
from typing import Any

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.slot import Place, RankName, SlotTable
from warmpath.indexer.past import Past
from warmpath.indexer.resolve.change import Added, Change, Gone, Spot


class RankSlots:
    """Applies a rank's changes to the index: the sink of a router's `RankIngest`."""

    def __init__(
        self, pod: str, rank: int, index: Index, table: SlotTable, past: Past | None = None
    ) -> None:
        """Tell `past` every change, before it shows in the index."""
        self._pod = pod
        self._rank = rank
        self._index = index
        self._table = table
        self._past = past
        self._unknown_past()
        self.epoch = 0
        """The number of the rank's present life."""
        self.certain: dict[Spot, int] = {}
        self.doubted: dict[Spot, int] = {}
        """Slots of blocks in doubt, where these are kept apart (`indexer.compiled`, `set_aside`)."""
        self._is_aside = False
        """Whether a snapshot is under way: it brings most blocks in doubt into the certain slot too."""

    def apply(self, change: Change) -> None:
        if self._past is not None and isinstance(change, Added | Gone):
            place, is_added = self._place(change.spot), isinstance(change, Added)
            self._past.changed(place, change.keys, is_added=is_added)
        if isinstance(change, Added):
            self._index.add(self.slot(change.spot), change.keys, change.links)
        elif isinstance(change, Gone):
            self._index.remove(self.slot(change.spot), change.keys)
        else:
            self.empty()

    def _unknown_past(self) -> None:
        if self._past is not None:
            self._past.begin(RankName(self._pod, self._rank))

    def apply_whole(self, change: Change) -> bool:
        """Apply one change; return whether every added key was absent, or every removed key present.

        If the index has given up keys to make room, this is not known, and the result is True.
        """
        if not isinstance(change, Added | Gone):
            self.apply(change)
            return True
        slot = self.slot(change.spot)
        before = self._index.count(slot)
        self.apply(change)
        changed = abs(self._index.count(slot) - before)
        return changed == len(change.keys) or self._index.stats().evicted > 0

    def keep_names(self, names: Any, numbers: Any) -> None:
        """Say in which arrays the rank has a table of its own names; None: it has none."""
        self._table.watcher.named(RankName(self._pod, self._rank), names, numbers)

    def slot(self, spot: Spot) -> int:
        slot = self.certain.get(spot)
        if slot is None:
            slot = self.certain[spot] = self._table.claim(self._place(spot))
        return slot

    def _place(self, spot: Spot) -> Place:
        tier, group = spot
        return Place(self._pod, self._rank, tier, self.epoch, group)

    def doubt(self, spot: Spot) -> None:
        """Turn a place's certain slot into its slot in doubt, and begin a new certain one.

        The place must have no slot in doubt yet.
        """
        slot = self.doubted[spot] = self.certain.pop(spot)
        self._table.change(slot, replace(self._place(spot), doubted=True))
        self.slot(spot)

    def set_aside(self) -> None:
        """Put all held blocks in doubt, and begin every place again without certain blocks.

        Where a place has blocks in doubt already, those stay, and its certain blocks are let go.
        """
        self._unknown_past()
        for spot in list(self.certain):
            if spot in self.doubted:
                self._drop(self.certain.pop(spot))
            else:
                self.doubt(spot)
        self._is_aside = True

    def drop_doubted(self) -> None:
        for slot in self.doubted.values():
            self._drop(slot)
        self.doubted.clear()
        self._is_aside = False

    def drop(self, spot: Spot) -> None:
        self._drop(self.certain.pop(spot))

    def _drop(self, slot: int) -> None:
        self._table.retire(slot)
        self._index.drop(slot)

    def empty(self) -> None:
        """Begin a new life: for readers, the old one's slots are empty at once."""
        self._unknown_past()
        self.drop_doubted()
        for slot in self.certain.values():
            self._drop(slot)
        self.certain.clear()
        self.epoch += 1
        self._table.watcher.lived(RankName(self._pod, self._rank), self.epoch)
        # This changes last, so that a reader who sees it change finds the new life.
        self._table.life_changes += 1

    def blocks(self, layout: Layout) -> dict[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds.

        While a snapshot is under way, that is the number held before or the number held since, whichever
        is larger.
        """
        held: dict[Tier, int] = {}
        shown = layout.shown
        for slots in (self.certain, self.doubted):
            for (tier, group), slot in list(slots.items()):
                count = self._index.count(slot) if group == shown else 0
                if count:
                    before = held.get(tier, 0)
                    held[tier] = max(before, count) if self._is_aside else before + count
        return held
