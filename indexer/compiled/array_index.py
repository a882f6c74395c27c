"""The embedded index: records and interned sets in flat arrays, worked on by compiled functions.

Concurrency. One thread writes; any number may read (`match`, `stretches`, `count`, `stats`). One lock
makes each step of at most `STEP` blocks and each look-up atomic, so a reader sees the index as it was
between two steps: of a long `add` a beginning, of a long `remove` an end, never half a block. The
writer gives way between steps while a reader waits, because Python's locks are not fair. Larger tables
are built beside the old ones without the lock, and put in their place under it.

Bytes. `max_bytes` bounds all arrays, and what else hangs on the index (`outside`). At the bound
blocks are given up (`give_up`), so that nothing is ever refused.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.compiled.blocks import blocks as blocks_of
from indexer.compiled.blocks import give_up as leave
from indexer.compiled.blocks import look_up, table
from indexer.compiled.blocks import sets as sets_of
from indexer.compiled.blocks.blocks import DEPTH, FREED, LIVE, NAMED, RESTED, SET, TOP, Blocks
from indexer.compiled.blocks.sets import Sets
from indexer.compiled.memory import zeros
from indexer.compiled.scan.scan import room
from indexer.index.contract import IndexStats, Links, Stretch
from indexer.index.orphans import Waiting
from indexer.invariant import BrokenInvariantError
from indexer.keys.key import Chain

STEP = 256
"""Blocks changed, at most, before the writer lets readers in."""
LOOKS = 16 * STEP
"""Records looked at, at most, the same way."""
FEW = STEP // 16
"""Blocks with which more than blocks goes, so that a few at a time are enough."""
MOST_LOAD = 0.75
GROWTH = 1.5
LEAST_PLACES = 1 << 10
SETS_LOAD = 0.6
RECORD_BYTES = 16
NAME_BYTES = 12
"""A name and a parent, where they are used."""
SHARE = 32
"""At the bound one block of so many is given up at once."""
DEFAULT_BYTES = 1 << 30
LEAST_BYTES = 512 << 10
"""The least that holds the tables and a few steps of writing."""
KEPT_BACK = 16
"""One byte of so many is kept back."""
LEAST_WORDS = 4
"""Words of a set at first: 256 slots."""
LATEST = 0xFFFF
"""The highest time of a match that fits a record."""


_stretch = partial(tuple.__new__, Stretch)
"""Makes a stretch of a list, in a third of the time that its class takes."""


class ArrayIndex:
    """Holds blocks in arrays. `clock` tells seconds; matches a second apart can be told apart."""

    def __init__(
        self, max_bytes: int = DEFAULT_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.evicted = 0
        self.outside: dict[object, Callable[[], int]] = {}
        """Bytes of what hangs on the index, by whose it is."""
        self.purges: dict[object, Callable[[], None]] = {}
        """Called before the numbers of blocks that were given up are used again."""
        self.waiting = Waiting(self._has_room)
        """Stores of all ranks that wait for their parent."""
        self.has_names = False
        """Whether names and parents are written; they then count."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._epoch = clock()
        least = RECORD_BYTES + 4 / MOST_LOAD
        capacity = min(int(max_bytes / least) + STEP, table.NUMBERS)
        self.blocks = blocks_of.new_blocks(capacity, 64 * LEAST_WORDS, LEAST_PLACES)
        self.sets = self._new_sets(0, LEAST_WORDS)
        self._view = look_up.view_of(self.blocks, self.sets)
        self.lock = threading.Lock()
        self._readers = 0
        """Readers that wait; a hint, so that it need not be exact."""
        self._found: NDArray[np.int64] = np.empty((256, 3), np.int64)
        self._dropped: set[int] = set()
        self._sweeping: set[int] = set()
        self._cursor = 0
        self._losers: set[int] = set()
        self._has_given_up = False
        self._left = 0
        """For how many blocks there is room, as far as was looked."""
        self.keys: NDArray[np.uint64] = np.empty(STEP, np.uint64)
        self.scratch = room(0)
        """Where the writer scans batches into (`compiled.scan`), whichever rank's they are."""

    # Reading

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:
        """Return the stretches of a prompt's blocks."""
        if chain.made:
            made = np.frombuffer(chain.made, "<u8").astype(np.uint64, copy=False)
            return self._read(look_up.of_keys, (made, self.now()))
        if chain.extras:
            return self.stretches(chain.keys())
        arguments = (
            np.uint64(chain.root),
            np.frombuffer(chain.tokens, np.uint32),
            chain.block_size,
            chain.blocks,
            leading,
            self.now(),
        )
        return self._read(look_up.of_tokens, arguments)

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        """Return the stretches of `keys`."""
        return self._read(look_up.of_keys, (np.asarray(keys, np.uint64), self.now()))

    def _read(self, look: Callable[..., int], arguments: tuple[Any, ...]) -> list[Stretch]:
        self._readers += 1
        with self.lock:
            self._readers -= 1
            count = look(*self._view, *arguments, self._found)
            if count > len(self._found):
                self._found = np.empty((2 * count, 3), np.int64)
                count = look(*self._view, *arguments, self._found)
            rows = self._found[:count].tolist()
        return list(map(_stretch, rows))

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds."""
        counts = self.blocks.counts
        return int(counts[slot]) if slot < len(counts) else 0

    def holds(self, slot: int, keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return 1 for each key that `slot` holds, and 0 for the others."""
        there = np.zeros(len(keys), np.uint8)
        if slot < len(self.blocks.counts):
            blocks_of.holds(self.blocks, self.sets, slot, keys, there)
        return there

    def stats(self) -> IndexStats:
        """Return the index's size."""
        counts = self.blocks.counts
        return IndexStats(
            keys=int(self.blocks.state[LIVE]),
            entries=int(counts.sum()),
            slots=int((counts > 0).sum()),
            bytes=self._bytes(),
            max_bytes=self._max_bytes,
            evicted=self.evicted,
        )

    def now(self) -> int:
        """Return the time as records keep it."""
        return min(LATEST, int(self._clock() - self._epoch))

    # Writing

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:
        """Let `slot` hold `keys`."""
        if self._is_dropped(slot):
            raise ValueError(f"slot {slot} is dropped and not swept yet")
        array = np.asarray(keys, np.uint64)
        starts = np.array([position for position, _ in links], np.int64)
        above = np.array([key for _, key in links], np.uint64)
        previous = 0
        for start in range(0, len(array), STEP):
            stop = min(start + STEP, len(array))
            if not self.reserve(stop - start, slot) and start:
                # It may be one that was given up.
                blocks = self.blocks
                previous = int(table.find(blocks.by_key, blocks.records, array[start - 1])) or -1
            with self.turn():
                previous = blocks_of.add(
                    self.blocks,
                    self.sets,
                    slot,
                    array,
                    starts,
                    above,
                    start,
                    stop,
                    previous,
                    self.now(),
                )

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`."""
        if self._is_dropped(slot) or slot >= len(self.blocks.counts):
            return
        array = np.asarray(keys, np.uint64)
        for start in range(0, len(array), STEP):
            stop = min(start + STEP, len(array))
            self.reserve(stop - start, slot)
            with self.turn():
                blocks_of.remove(self.blocks, self.sets, slot, array, start, stop, self.has_names)

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing, at once for readers."""
        if self._is_dropped(slot) or slot >= len(self.blocks.counts):
            return
        with self.turn():
            self.sets.live[slot >> 6] &= ~_bit(slot)
            self.blocks.counts[slot] = 0
        self._dropped.add(slot)

    def _is_dropped(self, slot: int) -> bool:
        return slot in self._dropped or slot in self._sweeping

    def sweep(self, budget: int) -> Iterable[int]:
        """Look at up to `budget` blocks; return the slots that are free again."""
        if self.now() == LATEST:
            with self.turn():
                leave.age(self.blocks, LATEST // 2)
            self._epoch += LATEST // 2
        if not self._sweeping:
            if not self._dropped:
                return ()
            # Slots dropped from here on wait for the next round: part of the blocks is behind it.
            self._sweeping, self._dropped = self._dropped, set()
            self._cursor = 1
        gone = np.zeros_like(self.sets.live)
        for slot in self._sweeping:
            gone[slot >> 6] |= _bit(slot)
        end = min(self._cursor + budget, int(self.blocks.state[TOP]))
        for start in range(self._cursor, end, STEP):
            self.reserve(STEP, 0)
            with self.turn():
                blocks_of.sweep(
                    self.blocks, self.sets, gone, start, min(start + STEP, end), self.has_names
                )
        self._cursor = end
        if end < int(self.blocks.state[TOP]):
            return ()
        with self.turn():
            self.sets.live[:] |= gone
        swept, self._sweeping = self._sweeping, set()
        return swept

    def take_losers(self) -> set[int]:
        """Return the slots that lost blocks for want of room since this was last asked."""
        losers, self._losers = self._losers, set()
        return losers - self._dropped - self._sweeping

    def turn(self) -> threading.Lock:
        """Let waiting readers go first; return the lock, for a step of writing."""
        for _ in range(8):
            if not self._readers:
                break
            time.sleep(0)
        return self.lock

    # Room

    def reserve(self, more: int, slot: int) -> bool:
        """Make room for `more` blocks, all with different new sets, and for a slot's bit.

        At most `STEP` blocks at once, so that one larger table is large enough. False where blocks were
        given up for it: what was known of numbers is void then.
        """
        if slot < len(self.blocks.counts) and more <= self._left:
            self._left -= more
            return True
        before = self.evicted
        if slot >= len(self.blocks.counts):
            self._widen(slot)
        state = self.blocks.state
        if self.has_names and int(state[RESTED]) * 16 > int(state[TOP]) + LOOKS:
            self._wake()
        wanted = self._cost(more)
        if wanted:
            self.make_room(wanted, more)
        while int(self.sets.state[sets_of.TOP]) + self._set_rows(more) > len(self.sets.uses):
            self._give_up(more)  # and with the blocks go sets that nobody has any more
        if places := _places(self.blocks.by_key, int(state[LIVE]) + more):
            by_key = self._larger(self.blocks.by_key, self.blocks.records, places)
            with self.turn():
                self._replace(self.blocks._replace(by_key=by_key), self.sets)
        if self.has_names and (places := _places(self.blocks.by_name, int(state[NAMED]) + more)):
            by_name = self._larger(self.blocks.by_name, self.blocks.names, places)
            with self.turn():
                self._replace(self.blocks._replace(by_name=by_name), self.sets)
        if places := self._set_places(more):
            larger = zeros(places, np.uint32)
            sets_of.refill(self.sets, larger)
            self.sets = self.sets._replace(table=larger)
        self._left = max(0, self._room_left() - more)
        return self.evicted == before

    def _room_left(self) -> int:
        """Return for how many blocks there is room without looking again."""
        state = self.blocks.state
        free = self._max_bytes - self._max_bytes // KEPT_BACK - self._bytes()
        left = min(
            LOOKS,
            free // self._block_bytes(),
            int(SETS_LOAD * len(self.sets.table)) - int(self.sets.state[sets_of.USED]) - 1,
            int(MOST_LOAD * len(self.blocks.by_key)) - int(state[LIVE]),
        )
        if self.has_names:
            left = min(left, int(MOST_LOAD * len(self.blocks.by_name)) - int(state[NAMED]))
        return left

    def _block_bytes(self) -> int:
        return RECORD_BYTES + NAME_BYTES + sets_of.row_bytes(self.sets.live.size)

    def spend(self, taken: int) -> None:
        """Take note of bytes that something outside takes by now, and make room where there is none."""
        blocks = -(-taken // self._block_bytes())
        if blocks <= self._left:
            self._left -= blocks
            return
        while not self.make_room(0, FEW) and self.blocks.state[LIVE]:
            pass

    def keep_names(self) -> None:
        """Let blocks have names and parents from now on.

        Each takes more room then. An index that has grown too large for that loses everything.
        """
        if self.has_names:
            return
        self.has_names = True
        self._left = 0
        if not self._fits(0):
            self._start_over()

    def _start_over(self) -> None:
        self.evicted += int(self.blocks.state[LIVE])
        self._losers.update(np.flatnonzero(self.blocks.counts).tolist())
        capacity = len(self.blocks.parents) - 1
        blocks = blocks_of.new_blocks(capacity, len(self.blocks.counts), LEAST_PLACES)
        sets = self._new_sets(0, self.sets.live.size)
        sets.live[:] = self.sets.live
        with self.turn():
            self._replace(blocks, sets)
        self._cursor = 1

    def make_room(self, wanted: int, more: int) -> bool:
        """Give up blocks where `wanted` bytes, for `more` blocks, would be more than may be.

        Return whether they fit then.
        """
        self._left = 0
        if self._fits(wanted):
            return True
        self.waiting.let_go()
        if self._fits(wanted):
            return True
        self._give_up(more)
        return self._fits(wanted)

    def _has_room(self, wanted: int) -> bool:
        self._left = 0  # what was reckoned knows nothing of what is wanted now
        return self._fits(wanted + self._cost(STEP))

    def lose(self, slot: int, count: int) -> None:
        """Take note that so many of a slot's blocks were let go for want of room."""
        self.evicted += count
        self._losers.add(slot)

    def _fits(self, wanted: int) -> bool:
        # Some is kept back for what cannot wait: more slots, and tables while they are replaced.
        return self._bytes() + wanted <= self._max_bytes - self._max_bytes // KEPT_BACK

    def _new_sets(self, used: int, words: int) -> Sets:
        capacity = self._max_bytes // sets_of.row_bytes(words) + 2 * STEP
        return sets_of.new_sets(capacity, words, max(LEAST_PLACES, _roomy(used, SETS_LOAD)))

    def _set_places(self, more: int) -> int:
        """Return the places of a larger table of sets, where one is needed."""
        return _places(self.sets.table, int(self.sets.state[sets_of.USED]) + more + 1, SETS_LOAD)

    def _set_rows(self, more: int) -> int:
        """Return how many sets beyond the present ones may be needed."""
        state = self.sets.state
        # While a block changes slots there is one set more than there are changes.
        return max(0, int(state[sets_of.USED]) + more + 2 - int(state[sets_of.TOP]))

    def _cost(self, more: int) -> int:
        """Return the bytes that `more` blocks take beyond what is taken already."""
        state = self.blocks.state
        fresh = max(0, int(state[LIVE]) + int(state[RESTED]) + more - int(state[TOP]) + 1)
        cost = fresh * (RECORD_BYTES + (NAME_BYTES if self.has_names else 0))
        cost += 4 * _places(self.blocks.by_key, int(state[LIVE]) + more)
        cost += self._set_rows(more) * sets_of.row_bytes(
            self.sets.live.size
        ) + 4 * self._set_places(more)
        if self.has_names:
            cost += 4 * _places(self.blocks.by_name, int(state[NAMED]) + more)
        return cost

    def _larger(
        self, old: NDArray[np.uint32], words: NDArray[np.uint64], places: int
    ) -> NDArray[np.uint32]:
        fresh: NDArray[np.uint32] = zeros(places, np.uint32)
        table.refill(fresh, words, old, self.keys)
        return fresh

    def _replace(self, blocks: Blocks, sets: Sets) -> None:
        """Go over to other arrays. The lock is held."""
        self.blocks, self.sets = blocks, sets
        self._view = look_up.view_of(blocks, sets)

    def _widen(self, slot: int) -> None:
        words = max(slot // 64 + 1, self.sets.live.size + self.sets.live.size // 4)
        state = self.sets.state
        while int(self.blocks.state[LIVE]):
            wanted = int(state[sets_of.USED]) + 2 * STEP
            if self._fits(wanted * sets_of.row_bytes(words) + 4 * _roomy(wanted, SETS_LOAD)):
                break
            self._give_up(STEP)  # and with the blocks go sets that nobody has any more
        fresh = self._new_sets(int(state[sets_of.USED]), words)
        numbers = np.zeros(int(state[sets_of.TOP]), np.uint32)
        counts = np.zeros(words * 64, np.int64)
        counts[: len(self.blocks.counts)] = self.blocks.counts
        with self.turn():
            sets_of.compact(self.sets, fresh, numbers)
            blocks_of.renumber(self.blocks, numbers)
            self._replace(self.blocks._replace(counts=counts), fresh)

    def _wake(self) -> None:
        if self._has_given_up:
            self._has_given_up = False
            for purge in self.purges.values():
                purge()
        blocks_of.wake(self.blocks)

    def _give_up(self, more: int) -> None:
        """Give up blocks, so that there is room for `more`."""
        state = self.blocks.state
        wanted = max(4 * more, int(state[LIVE]) // SHARE)
        when, depth = leave.choose(self.blocks, wanted)
        losers = np.zeros_like(self.sets.live)
        end = int(state[TOP])
        for start in range(1, end, LOOKS):
            with self.turn():
                self.evicted += leave.give_up(
                    self.blocks,
                    self.sets,
                    when,
                    depth,
                    start,
                    min(start + LOOKS, end),
                    self.has_names,
                    losers,
                )
        self._losers.update(slots_of(losers))
        self._has_given_up = True
        if self.has_names:
            self._wake()

    def _bytes(self) -> int:
        blocks = self.blocks
        used = int(blocks.state[TOP]) * (RECORD_BYTES + (NAME_BYTES if self.has_names else 0))
        tables = blocks.by_key.nbytes + blocks.by_name.nbytes + blocks.counts.nbytes
        return (
            used
            + tables
            + sets_of.nbytes(self.sets)
            + self.waiting.bytes
            + sum(bytes_of() for bytes_of in self.outside.values())
        )

    def check(self) -> None:
        """Raise BrokenInvariantError where tables, sets and counts disagree."""
        check(self.blocks, self.sets)


def _roomy(entries: int, load: float) -> int:
    """Return the places of a table that so many entries do not fill for a while."""
    return int(entries / load * GROWTH)


def _places(table: NDArray[np.uint32], entries: int, load: float = MOST_LOAD) -> int:
    """Return the places of a larger table, where one is needed for so many entries; else 0."""
    return _roomy(entries, load) if entries > load * len(table) else 0


def _bit(slot: int) -> np.uint64:
    return np.uint64(1) << np.uint64(slot & 63)


def slots_of(words: NDArray[np.uint64]) -> list[int]:
    """Return the slots of a set."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(slot) for slot in np.flatnonzero(bits)]


def check(blocks: Blocks, sets: Sets) -> None:
    """Raise BrokenInvariantError where tables, sets and counts disagree."""
    top = int(blocks.state[TOP])
    numbers = np.flatnonzero(blocks.quarters[1:top, DEPTH] != FREED) + 1
    keys = blocks.records[numbers, 0]
    _require(len(numbers) == int(blocks.state[LIVE]), "the blocks do not add up")
    _require(len(np.unique(keys)) == len(keys), "two blocks have one key")
    for field, words, entries in (
        ("by_key", blocks.records, numbers),
        ("by_name", blocks.names, numbers[blocks.names[numbers, 0] != 0]),
    ):
        places = getattr(blocks, field)
        _require(np.count_nonzero(places) == len(entries), f"{field} has other entries")
        for number in entries.tolist():
            word = words[number, 0]
            at = table.seek(places, words, word, table.home(word, len(places)))
            while at >= 0 and table.number_at(places, at) != number:
                at = table.seek(places, words, word, table.after(at, len(places)))
            _require(at >= 0, f"{field} does not find block {number}")
    _require(int(blocks.state[NAMED]) == np.count_nonzero(blocks.names[numbers, 0]), "names")
    held = blocks.halves[numbers, SET]
    _require(bool((held != 0).all()), "a block that nobody holds is kept")
    uses: Any = np.bincount(held, minlength=1)
    used = np.flatnonzero(uses)
    _require(bool((sets.uses[used] == uses[used]).all()), "the uses of sets do not add up")
    _require(int(sets.state[sets_of.USED]) == len(used), "sets that nobody has are kept")
    words_used = [tuple(row) for row in sets.words[used].tolist()]
    _require(len(set(words_used)) == len(used), "a set is kept twice")
    counts = np.zeros(len(blocks.counts), np.int64)
    for number in used.tolist():
        counts[slots_of(sets.words[number] & sets.live)] += uses[number]
    _require(bool((counts == blocks.counts).all()), "the counts of held keys do not add up")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenInvariantError(otherwise)
