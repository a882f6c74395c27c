"""The embedded index in pure Python: one dict from key to an interned bit set of slots.

It is the reference for the compiled index (`indexer.compiled.array_index`): tests compare the two, each with
the state of ranks of its kind.

Most blocks share few distinct holder sets, and Python's integers are immutable, so a set is an
integer with one bit for each slot, interned: a block costs a dict entry and nothing else, and two blocks
have the same holders iff their values are the same object. A look-up walks the keys, compares
identities, and decodes a set only where it changes.

Dropping a slot clears its bit in the mask of live slots, which every reader applies: O(1), whatever
the slot holds. The bits left behind are swept later in bounded steps, and only then may the slot's
number be used again.

A lock makes every call atomic.

Bytes are estimated, not measured. Each key has an age: its high bits are the second of the key's last
match, its low bits the greatest depth minus the key's own. Giving up the smallest ages gives up the
least recently matched prefixes, the deepest blocks first.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from warmpath.indexer.index.contract import IndexStats, Links, Stretch
from warmpath.indexer.index.orphans import AllOrphans
from warmpath.indexer.keys.key import Chain

KEY_BYTES = 260
"""A high estimate of a key's bytes: two dict entries and their numbers."""
SET_BYTES = 400
"""An estimate of a set's bytes: its number, and three dict entries."""
SHARE = 32
"""At the bound, at least one key in this many is given up at once."""
STEP = 256
"""Keys for which room is made at once."""
DEPTH_BITS = 16
DEEPEST = (1 << DEPTH_BITS) - 1


class MemoryIndex:
    """Holds an interned bit set of slots for each key. `clock` returns seconds."""

    def __init__(
        self, max_bytes: int = 1 << 30, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.waiting = AllOrphans(self._has_room)
        """Stores of all ranks that wait for their parent."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._ages: dict[int, int] = {}
        self._evicted = 0
        self._losers: set[int] = set()
        self._set_of: dict[int, int] = {}
        self._interned: dict[int, int] = {}
        """Each set in use, by its value: the one object that stands for it."""
        self._uses: dict[int, int] = {}
        """How many keys have each set in use."""
        self._counts: dict[int, int] = {}
        self._live = -1
        """A mask: a set bit for each slot, except dropped slots that are not swept yet."""
        self._dropped: set[int] = set()
        self._sweeping: set[int] = set()
        self._unswept: Iterator[int] | None = None

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:
        with self._lock:
            bit = 1 << slot
            if not self._live & bit:
                raise ValueError(f"slot {slot} is dropped and not swept yet")
            above_of = dict(links)
            before = 0
            for start in range(0, len(keys), STEP):
                step = [int(key) for key in keys[start : start + STEP]]
                if not self._has_room(KEY_BYTES * len(step)):
                    self.waiting.let_go()
                if not self._has_room(KEY_BYTES * len(step)):
                    self._give_up(2 * len(step))
                self._age(step, [above_of.get(start + at) for at in range(len(step))], before)
                before = step[-1]
                flipped = self._flip(bit, step, held=False)
                self._counts[slot] = self._counts.get(slot, 0) + flipped

    def _age(self, keys: Sequence[int], above_of: Sequence[int | None], before: int) -> None:
        """Give each new key an age: the last match of the key before it, and a depth one greater.

        `above_of` has the key before each, None where it is the one listed before; `before` is the key
        before the first. No prompt can reuse a key behind one that was given up, so such a key gets the
        greatest depth.
        """
        ages = self._ages
        now = int(self._clock()) << DEPTH_BITS
        for key, said in zip(keys, above_of, strict=True):
            above = before if said is None else said
            if key not in ages:
                previous = ages.get(above, now) if above else now + DEEPEST + 1
                ages[key] = previous - 1 if previous & DEEPEST or not above else previous
            before = key

    def _bytes(self) -> int:
        sets = SET_BYTES * len(self._interned)
        return KEY_BYTES * len(self._set_of) + sets + self.waiting.bytes

    def _has_room(self, wanted: int) -> bool:
        return self._bytes() + wanted <= self._max_bytes

    def _give_up(self, wanted: int) -> None:
        wanted = max(wanted, len(self._set_of) // SHARE)
        gone = heapq.nsmallest(wanted, self._set_of, key=self._ages.__getitem__)
        slots: set[int] = set()
        for key in gone:
            slots.update(_bits(self._set_of[key] & self._live))
        for slot in slots:
            self._counts[slot] -= self._flip(1 << slot, gone, held=True)
        # Of the keys to give up, those remain that only dropped slots hold.
        for slot in self._dropped | self._sweeping:
            self._flip(1 << slot, gone, held=True)
        self._evicted += len(gone)
        self._losers |= slots

    def take_losers(self) -> set[int]:
        with self._lock:
            losers, self._losers = self._losers, set()
            return losers - self._dropped - self._sweeping

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        with self._lock:
            bit = 1 << slot
            if self._live & bit and slot in self._counts:
                self._counts[slot] -= self._flip(bit, keys, held=True)

    def _flip(self, bits: int, keys: Iterable[int], *, held: bool) -> int:
        """Flip `bits` in the sets of `keys`; return how many keys this concerned.

        With `held` these are the keys whose sets have any of the bits, else those whose sets have none.
        """
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
                del set_of[key], self._ages[key]
            stretch += 1
            flipped += 1
        self._shift(before, after, stretch)
        return flipped

    def _shift(self, before: int, after: int, keys: int) -> None:
        """Count `keys` keys less for set `before`, and more for `after`; forget a set without keys."""
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
        with self._lock:
            bit = 1 << slot
            if self._live & bit:
                self._live ^= bit
                self._dropped.add(slot)
                self._counts.pop(slot, None)

    def sweep(self, budget: int) -> Iterable[int]:
        with self._lock:
            if self._unswept is None:
                if not self._dropped:
                    return ()
                # Slots dropped from here on wait for the next round: their keys may be passed already.
                self._sweeping, self._dropped = self._dropped, set()
                self._unswept = iter(list(self._set_of))
            gone = sum(1 << slot for slot in self._sweeping)
            step = list(islice(self._unswept, budget))
            # Some of the swept slots may hold a key and others not, so each is removed on its own.
            for slot in self._sweeping:
                self._flip(1 << slot, step, held=True)
            if len(step) == budget:
                return ()
            swept, self._sweeping, self._unswept = self._sweeping, set(), None
            self._live |= gone
            return swept

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:  # noqa: ARG002
        return self.stretches(chain.keys())

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        with self._lock:
            get, ages = self._set_of.get, self._ages
            now = int(self._clock()) << DEPTH_BITS
            found: list[Stretch] = []
            opened: dict[int, int] = {}
            before = current = 0
            for depth, key in enumerate(keys):
                held = get(key, 0)
                if held:
                    ages[key] = now | (ages[key] & DEEPEST)
                if held is not before:
                    before = held
                    current = self._turn(held & self._live, current, depth, opened, found)
            self._turn(0, current, len(keys), opened, found)
            return found

    def _turn(
        self, after: int, before: int, depth: int, opened: dict[int, int], found: list[Stretch]
    ) -> int:
        for slot in _bits(after ^ before):
            if after >> slot & 1:
                opened[slot] = depth
            else:
                found.append(Stretch(slot, opened.pop(slot), depth))
        return after

    def count(self, slot: int) -> int:
        return self._counts.get(slot, 0)

    def stats(self) -> IndexStats:
        with self._lock:
            return IndexStats(
                keys=len(self._set_of),
                entries=sum(self._counts.values()),
                slots=sum(count > 0 for count in self._counts.values()),
                bytes=self._bytes(),
                max_bytes=self._max_bytes,
                evicted=self._evicted,
            )


def _bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
