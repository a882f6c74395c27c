"""The reference index: dicts and sets, obviously right, the oracle of the conformance suite."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from warmpath.indexer.index.contract import IndexStats, Links, Stretch
from warmpath.indexer.index.orphans import AllOrphans
from warmpath.indexer.keys.key import Chain


class ReferenceIndex:
    """Holds a set of slots for each key. Clear rather than fast; drops at once."""

    def __init__(self) -> None:
        self.waiting = AllOrphans(lambda _: True)
        self._slots_of: dict[int, set[int]] = {}
        self._dropped: set[int] = set()

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:  # noqa: ARG002
        """Let `slot` hold `keys`."""
        for key in keys:
            self._slots_of.setdefault(key, set()).add(slot)

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`."""
        for key in keys:
            slots = self._slots_of.get(key, set())
            slots.discard(slot)
            if not slots:
                self._slots_of.pop(key, None)

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing."""
        self.remove(slot, list(self._slots_of))
        self._dropped.add(slot)

    def sweep(self, budget: int) -> Iterable[int]:
        """Return the dropped slots; nothing remains of them."""
        if budget <= 0:
            return ()
        swept, self._dropped = self._dropped, set()
        return swept

    def take_losers(self) -> set[int]:
        """Return nothing: this index has no bound."""
        return set()

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:  # noqa: ARG002
        """Return the stretches of a prompt's blocks."""
        return self.stretches(chain.keys())

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        """Return the stretches of `keys`."""
        held = [self._slots_of.get(key, set()) for key in keys]
        found = []
        for slot in set().union(*held):
            start = 0
            for is_held, group in groupby(slot in slots for slots in held):
                stop = start + len(list(group))
                if is_held:
                    found.append(Stretch(slot, start, stop))
                start = stop
        return found

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds."""
        return sum(slot in slots for slots in self._slots_of.values())

    def stats(self) -> IndexStats:
        """Return the index's size."""
        return IndexStats(
            keys=len(self._slots_of),
            entries=sum(map(len, self._slots_of.values())),
            slots=len(set().union(*self._slots_of.values())),
        )
