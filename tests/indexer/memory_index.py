"""The embedded index in pure Python: the slots of each key and the keys of each slot, in sets.

It is the reference for the compiled index (`indexer.compiled.array_index`): tests compare the two, each with
the state of ranks of its kind. A lock makes every call atomic. Bytes are estimated.

Each key has an age: its high bits are the second of the key's last match, its low bits the greatest depth
minus the key's own. Giving up the smallest ages gives up the least recently matched prefixes, the deepest
blocks first.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from warmpath.indexer.index.contract import IndexStats, Links, Stretch
from warmpath.indexer.index.orphans import AllOrphans
from warmpath.indexer.keys.key import Chain

KEY_BYTES = 260
"""The assumed bytes of a key, its holders included."""
SHARE = 32
"""At the bound, at least one key in this many is given up at once."""
STEP = 256
"""Keys for which room is made at once."""
DEPTH_BITS = 16
DEEPEST = (1 << DEPTH_BITS) - 1
NOBODY: frozenset[int] = frozenset()


class MemoryIndex:
    """Holds a set of slots for each key. `clock` returns seconds. A slot is dropped at once."""

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
        self._slots_of: dict[int, set[int]] = {}
        self._keys_of: dict[int, set[int]] = {}
        self._dropped: set[int] = set()
        """The dropped slots that no sweep has returned."""

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:
        with self._lock:
            if slot in self._dropped:
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
                for key in step:
                    self._slots_of.setdefault(key, set()).add(slot)
                self._keys_of.setdefault(slot, set()).update(step)

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
        return KEY_BYTES * len(self._slots_of) + self.waiting.bytes

    def _has_room(self, wanted: int) -> bool:
        return self._bytes() + wanted <= self._max_bytes

    def _give_up(self, wanted: int) -> None:
        wanted = max(wanted, len(self._slots_of) // SHARE)
        for key in heapq.nsmallest(wanted, self._slots_of, key=self._ages.__getitem__):
            self._evicted += 1
            for slot in [*self._slots_of[key]]:
                self._losers.add(slot)
                self.remove(slot, [key])

    def take_losers(self) -> set[int]:
        with self._lock:
            losers, self._losers = self._losers, set()
            return losers - self._dropped

    def remove(self, slot: int, keys: Iterable[int]) -> None:
        with self._lock:
            held = self._keys_of.get(slot, set())
            for key in held.intersection(keys):
                held.remove(key)
                self._slots_of[key].remove(slot)
                if not self._slots_of[key]:
                    del self._slots_of[key], self._ages[key]

    def drop(self, slot: int) -> None:
        with self._lock:
            self.remove(slot, self._keys_of.get(slot, ()))
            self._dropped.add(slot)

    def sweep(self, budget: int) -> Iterable[int]:
        """Return the dropped slots; nothing remains of them."""
        with self._lock:
            if budget <= 0:
                return ()
            swept, self._dropped = self._dropped, set()
            return swept

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:  # noqa: ARG002
        return self.stretches(chain.keys())

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        with self._lock:
            now = int(self._clock()) << DEPTH_BITS
            found: list[Stretch] = []
            opened: dict[int, int] = {}
            before: set[int] | frozenset[int] = NOBODY
            for depth, key in enumerate(keys):
                held = self._slots_of.get(key) or NOBODY
                if held:
                    self._ages[key] = now | (self._ages[key] & DEEPEST)
                if held != before:
                    found += [Stretch(slot, opened.pop(slot), depth) for slot in before - held]
                    opened |= dict.fromkeys(held - before, depth)
                    before = held
            return found + [Stretch(slot, start, len(keys)) for slot, start in opened.items()]

    def count(self, slot: int) -> int:
        return len(self._keys_of.get(slot, ()))

    def stats(self) -> IndexStats:
        with self._lock:
            return IndexStats(
                keys=len(self._slots_of),
                entries=sum(map(len, self._keys_of.values())),
                slots=sum(map(bool, self._keys_of.values())),
                bytes=self._bytes(),
                max_bytes=self._max_bytes,
                evicted=self._evicted,
            )
