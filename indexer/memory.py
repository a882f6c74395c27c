"""The embedded index: one dict from key to an interned bit set of slots.

Most blocks share few distinct holder sets, and Python's integers are immutable, so a set is an
integer of one bit a slot, interned: a block costs a dict entry and nothing else, and two blocks have
the same holders iff their values are the same object. A look-up walks the keys comparing
identities, and decodes a set once a run.

Dropping a slot clears its bit in the mask of live slots, which every reader applies: O(1), whatever
the slot holds. The bits left behind are swept later in bounded steps, and only then may the slot's
number be used again.

One thread calls at a time; the router calls from its event loop.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from indexer.index import BrokenInvariantError, IndexStats, Run


class MemoryIndex:
    """Holds an interned bit set of slots for each key."""

    def __init__(self) -> None:
        self._set_of: dict[int, int] = {}
        self._interned: dict[int, int] = {}
        """Each set in use, to the one object that stands for it."""
        self._uses: dict[int, int] = {}
        """How many keys each set in use has."""
        self._counts: dict[int, int] = {}
        self._live = -1
        """All ones but for the dropped slots that are not swept yet."""
        self._dropped: set[int] = set()
        self._sweeping: set[int] = set()
        self._unswept: Iterator[int] | None = None

    def add(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` hold `keys`."""
        bit = 1 << slot
        if not self._live & bit:
            raise ValueError(f"slot {slot} is dropped and not swept yet")
        self._counts[slot] = self._counts.get(slot, 0) + self._flip(bit, keys, held=False)

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`."""
        bit = 1 << slot
        if self._live & bit and slot in self._counts:
            self._counts[slot] -= self._flip(bit, keys, held=True)

    def _flip(self, bits: int, keys: Iterable[int], *, held: bool) -> int:
        """Flip `bits` in the sets of those `keys` that have any of them iff `held`; count them."""
        set_of = self._set_of
        flipped = 0
        # Neighbours mostly share a set: intern and count once a stretch, not once a key.
        before, after, stretch = -1, 0, 0
        for key in keys:
            old = set_of.get(key, 0)
            if bool(old & bits) is not held:
                continue
            if old is not before:
                self._shift(before, after, stretch)
                before, stretch = old, 0
                after = old & ~bits if held else old | bits
                after = self._interned.setdefault(after, after) if after else 0
            if after:
                set_of[key] = after
            else:
                del set_of[key]
            stretch += 1
            flipped += 1
        self._shift(before, after, stretch)
        return flipped

    def _shift(self, before: int, after: int, keys: int) -> None:
        """Count `keys` keys less for one set and more for another; forget a set without keys."""
        if not keys:
            return
        uses = self._uses
        if after:
            uses[after] = uses.get(after, 0) + keys
        if before:
            uses[before] -= keys
            if not uses[before]:
                del uses[before], self._interned[before]

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing, at once for readers."""
        bit = 1 << slot
        if self._live & bit:
            self._live ^= bit
            self._dropped.add(slot)
            self._counts.pop(slot, None)

    def sweep(self, budget: int) -> Iterable[int]:
        """Look at up to `budget` keys; return the slots that are free again."""
        if self._unswept is None:
            if not self._dropped:
                return ()
            # Slots dropped from here on wait for the next round: part of the keys is behind it.
            self._sweeping, self._dropped = self._dropped, set()
            self._unswept = iter(list(self._set_of))
        gone = sum(1 << slot for slot in self._sweeping)
        step = list(islice(self._unswept, budget))
        # A key may hold some of the swept slots and not others, so each is cut on its own.
        for slot in self._sweeping:
            self._flip(1 << slot, step, held=True)
        if len(step) == budget:
            return ()
        swept, self._sweeping, self._unswept = self._sweeping, set(), None
        self._live |= gone
        return swept

    def holders(self, keys: Sequence[int]) -> list[Run]:
        """Return the runs that cover `keys`."""
        runs: list[Run] = []
        if not keys:
            return runs
        get = self._set_of.get
        start, current = 0, get(keys[0], 0)
        for depth, key in enumerate(keys):
            found = get(key, 0)
            if found is not current:
                self._append(runs, start, depth, current)
                start, current = depth, found
        self._append(runs, start, len(keys), current)
        return runs

    def _append(self, runs: list[Run], start: int, stop: int, mask: int) -> None:
        slots = frozenset(_bits(mask & self._live))
        # Sets that differ only in dropped slots look the same to readers.
        if runs and runs[-1].slots == slots:
            runs[-1] = Run(runs[-1].start, stop, slots)
        else:
            runs.append(Run(start, stop, slots))

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds."""
        return self._counts.get(slot, 0)

    def stats(self) -> IndexStats:
        """Return the index's size."""
        return IndexStats(
            keys=len(self._set_of),
            entries=sum(self._counts.values()),
            slots=sum(count > 0 for count in self._counts.values()),
        )

    def check(self) -> None:
        """Raise BrokenInvariantError where sets are not interned or counts do not add up."""
        counts: dict[int, int] = {}
        if (
            Counter(self._set_of.values()) != self._uses
            or self._uses.keys() != self._interned.keys()
        ):
            raise BrokenInvariantError("the sets in use are not those of the keys")
        for mask in self._set_of.values():
            if not mask:
                raise BrokenInvariantError("a key without holders is kept")
            if self._interned.get(mask) is not mask:
                raise BrokenInvariantError(f"the set {mask:#x} is not interned")
            for slot in _bits(mask & self._live):
                counts[slot] = counts.get(slot, 0) + 1
        if counts != {slot: count for slot, count in self._counts.items() if count}:
            raise BrokenInvariantError("the counts of held keys do not add up")


def _bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
