"""Slots: small integers for the `Place`s in the index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warmpath.indexer.engines.event import Tier


class RankName(NamedTuple):
    """A rank of the fleet, by its pod's name and its number in the pod."""

    pod: str
    number: int


@dataclass(frozen=True, slots=True)
class Place:
    """The meaning of a slot: a rank, one of its tiers and cache groups, and a life of its engine."""

    pod: str
    rank: int
    tier: Tier
    epoch: int
    group: int = 0
    """The cache group (`indexer.engines.cache_groups`)."""
    doubted: bool = False
    """Whether the slot's blocks are in doubt: the rank held them when events were missed, and no event
    since has shown that they are still there."""
    name: RankName = field(init=False, repr=False, compare=False)
    """The rank, made once since every look-up asks for it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", RankName(self.pod, self.rank))


class Watcher:
    """What is told of slots; this one does nothing with it."""

    def placed(self, slot: int, place: Place | None) -> None:
        """Take a slot's place from now on; None: it stands for nothing."""

    def named(self, name: RankName, names: Any, numbers: Any) -> None:
        """Take the arrays with a rank's own names and their blocks; None: it has none."""

    def lived(self, name: RankName, life: int) -> None:
        """Take a rank's new life."""


class SlotTable:
    """Gives out slots, smallest free one first, so that sets of slots stay short.

    A retired slot has no place any more, but its number is given out again only after `free`, when the
    index has swept its remains.
    """

    def __init__(self, watcher: Watcher | None = None) -> None:
        self.watcher = watcher or Watcher()
        self._places: list[Place | None] = []
        self.places: Sequence[Place | None] = self._places
        """The places by slot; None for a retired one."""
        self._slots: dict[Place, int] = {}
        self._free: set[int] = set()
        self.reused = 0
        """How often a number was given out again."""
        self.life_changes = 0
        """How often a rank has begun a new life."""

    def claim(self, place: Place) -> int:
        """Return the slot of `place`; if it has none, give it the smallest free one."""
        slot = self._slots.get(place)
        if slot is not None:
            return slot
        if self._free:
            slot = min(self._free)
            self._free.remove(slot)
            self.reused += 1
            self._places[slot] = place
        else:
            slot = len(self._places)
            self._places.append(place)
        self._slots[place] = slot
        self.watcher.placed(slot, place)
        return slot

    def change(self, slot: int, place: Place) -> None:
        """Let a slot stand for another place, which has no slot yet."""
        old = self._places[slot]
        assert old is not None
        del self._slots[old]
        self._places[slot] = place
        self._slots[place] = slot
        self.watcher.placed(slot, place)

    def retire(self, slot: int) -> None:
        """Let `slot` stand for nothing; its number is not given out again before `free`."""
        place = self._places[slot]
        if place is not None:
            del self._slots[place]
            self._places[slot] = None
            self.watcher.placed(slot, None)

    def free(self, slot: int) -> None:
        """Let the number of a retired slot be given out again."""
        if self._places[slot] is not None:
            raise ValueError(f"slot {slot} is in use")
        self._free.add(slot)

    def place(self, slot: int) -> Place | None:
        """Return the rank, tier and group for which `slot` stands; None for a retired one."""
        return self._places[slot] if slot < len(self._places) else None
