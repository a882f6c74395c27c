"""The arrays of the embedded index, which grow within a bound of bytes.

One lock makes each step of writing and each look-up atomic. Larger tables are built beside the old ones
without the lock, and put in their place under it.

`max_bytes` bounds all arrays together with the memory that ranks have outside of them (`outside`). At
the bound blocks are given up (`give_up`), so that no new block is refused.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks import blocks as blocks_of
from warmpath.indexer.compiled.blocks import give_up as leave
from warmpath.indexer.compiled.blocks import look_up, table
from warmpath.indexer.compiled.blocks import sets as sets_of
from warmpath.indexer.compiled.blocks.blocks import LIVE, NAMED, RESTED, TOP, Blocks
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.memory import REBUILDING, VERSION, WANTED, Memory
from warmpath.indexer.compiled.outside import Outside, zeros
from warmpath.indexer.compiled.steps import Step
from warmpath.indexer.index.orphans import AllOrphans

PAUSES, PAUSE_SECONDS = 10, 1e-4
"""How often, and for how long, the writer waits before a step while readers elsewhere want it to."""
STEP = 256
"""The most blocks that the writer changes before it lets readers in."""
LOOKS = 16 * STEP
"""The most records that the writer looks at before it lets readers in."""
FEW = STEP // 16
"""Blocks to make room for at a time where giving up also frees memory outside the arrays."""
MOST_LOAD = 0.75
GROWTH = 1.5
LEAST_PLACES = 1 << 10
SETS_LOAD = 0.6
RECORD_BYTES = 16
NAME_BYTES = 12
"""Bytes of a block's name and its parent's number, where the index keeps them."""
SHARE = 32
"""At the bound, at least one block in this many is given up at once."""
KEPT_BACK = 16
"""One byte in this many is kept back for slots, and for tables while they are replaced."""
LEAST_WORDS = 4
"""Words of a set in a new index: 256 slots."""


class Arrays:
    """Blocks and their sets in arrays of at most `max_bytes`, in `memory` if it is given."""

    def __init__(self, max_bytes: int, memory: Memory | None = None) -> None:
        self.max_bytes = max_bytes
        self.memory = memory
        self.zeros = zeros if memory is None else memory.zeros
        """Makes arrays that other processes may read."""
        self.evicted = 0
        """Blocks given up to make room."""
        self.losers: set[int] = set()
        """Slots that lost blocks to make room since the last `take_losers`, which empties the set."""
        self.outside = Outside()
        """The bytes that ranks have outside the arrays."""
        self.purges: dict[object, Callable[[], None]] = {}
        """Functions to call before numbers of given-up blocks are used again, by their owner."""
        self.waiting = AllOrphans(self._has_room)
        """Stores of all ranks that wait for their parent."""
        self.has_names = False
        """Whether blocks have names and parents, whose bytes then count."""
        least = RECORD_BYTES + 4 / MOST_LOAD
        capacity = min(int(max_bytes / least) + STEP, table.NUMBERS)
        self.blocks = blocks_of.new_blocks(capacity, 64 * LEAST_WORDS, LEAST_PLACES, self.zeros)
        self.sets = self._new_sets(0, LEAST_WORDS)
        self.view = look_up.view_of(self.blocks, self.sets)
        """The arrays that a look-up reads (`look_up.view_of`)."""
        self._name()
        self.keys: NDArray[np.uint64] = np.empty(STEP, np.uint64)
        """Scratch memory for the keys of one step."""
        self.lock = threading.Lock()
        self._step = self.lock if memory is None else Step(self.lock, memory.head, VERSION)
        self.readers = 0
        """How many readers wait for the lock. A hint to the writer: it need not be exact."""
        self._has_given_up = False
        self._left = 0
        """How many more blocks surely have room; `reserve` counts again where they are too few."""

    def turn(self) -> AbstractContextManager[object]:
        """Let waiting readers go first; return what the caller holds while it writes."""
        for _ in range(8):
            if not self.readers:
                break
            time.sleep(0)
        if self.memory is not None:
            self._pause(self.memory)
        return self._step

    def _pause(self, memory: Memory) -> None:
        """Wait for readers in other processes that a flood of events lets read nothing whole."""
        for _ in range(PAUSES):
            if memory.head[WANTED] < time.monotonic_ns():
                break
            time.sleep(PAUSE_SECONDS)

    # Room

    def reserve(self, more: int, slot: int) -> bool:
        """Make room for `more` blocks, each with a new set, and for a slot's bit.

        `more` is at most `STEP`, so that growing each table once is enough. Return False where blocks
        were given up for the room: any number of a block that the caller remembers is void then.
        """
        if slot < len(self.blocks.counts) and more <= self._left:
            self._left -= more
            return True
        before = self.evicted
        if slot >= len(self.blocks.counts):
            self._widen(slot)
        state = self.blocks.state
        if self.has_names and int(state[RESTED]) * 16 > int(state[TOP]) + LOOKS:
            self.wake()
        wanted = self._cost(more)
        if wanted:
            self.make_room(wanted, more)
        while int(self.sets.state[sets_of.TOP]) + self._set_rows(more) > len(self.sets.uses):
            self._give_up(more)  # this also frees sets that no block has any more
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
        """Return how many more blocks surely have room, in each table and within the bound."""
        state = self.blocks.state
        free = self.max_bytes - self.max_bytes // KEPT_BACK - self._used()
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
        """Account for bytes taken outside the arrays just now; give up blocks where they do not fit."""
        blocks = -(-taken // self._block_bytes())
        if blocks <= self._left:
            self._left -= blocks
            return
        while not self.make_room(0, FEW) and self.blocks.state[LIVE]:
            pass

    def keep_names(self) -> None:
        """Keep names and parents of blocks from now on.

        Each block takes more bytes then. An index that has grown too large for that loses everything.
        """
        if self.has_names:
            return
        self.has_names = True
        self._left = 0
        if not self._fits(0):
            self._start_over()

    def _start_over(self) -> None:
        self.evicted += int(self.blocks.state[LIVE])
        self.losers.update(np.flatnonzero(self.blocks.counts).tolist())
        capacity = len(self.blocks.parents) - 1
        blocks = blocks_of.new_blocks(capacity, len(self.blocks.counts), LEAST_PLACES, self.zeros)
        sets = self._new_sets(0, self.sets.live.size)
        sets.live[:] = self.sets.live
        with self.turn():
            self._replace(blocks, sets)

    def make_room(self, wanted: int, more: int) -> bool:
        """Give up orphans, then some blocks, where `wanted` bytes for `more` blocks exceed the bound.

        Return whether the bytes fit now; where they do not, a further call gives up more.
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
        self._left = 0  # it was computed before these bytes were wanted
        return self._fits(wanted + self._cost(STEP))

    def lose(self, slot: int, count: int) -> None:
        """Count `count` blocks of a slot as given up to make room."""
        self.evicted += count
        self.losers.add(slot)

    def _fits(self, wanted: int) -> bool:
        # The bytes kept back are for more slots, and for tables while they are replaced.
        return self._used() + wanted <= self.max_bytes - self.max_bytes // KEPT_BACK

    def _new_sets(self, used: int, words: int) -> Sets:
        capacity = self.max_bytes // sets_of.row_bytes(words) + 2 * STEP
        places = max(LEAST_PLACES, _roomy(used, SETS_LOAD))
        return sets_of.new_sets(capacity, words, places, self.zeros)

    def _set_places(self, more: int) -> int:
        """Return the size of the larger table of sets that `more` blocks need; 0 for none."""
        return _places(self.sets.table, int(self.sets.state[sets_of.USED]) + more + 1, SETS_LOAD)

    def _set_rows(self, more: int) -> int:
        """Return how many new rows, not used so far, the sets of `more` further blocks may need."""
        state = self.sets.state
        # While a block changes slots, its old set and its new one are both in use.
        return max(0, int(state[sets_of.USED]) + more + 2 - int(state[sets_of.TOP]))

    def _cost(self, more: int) -> int:
        """Return the bytes by which `more` blocks would let the arrays grow."""
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
        fresh: NDArray[np.uint32] = self.zeros(places, np.uint32)
        table.refill(fresh, words, old, self.keys)
        return fresh

    def _replace(self, blocks: Blocks, sets: Sets) -> None:
        """Put other arrays in the place of the present ones. The caller holds the lock."""
        self.blocks, self.sets = blocks, sets
        self.view = look_up.view_of(blocks, sets)
        self._name()

    def _name(self) -> None:
        """Tell other processes where the arrays are that they read."""
        blocks, sets = self.blocks, self.sets
        if self.memory is not None:
            self.memory.name(
                by_key=blocks.by_key,
                records=blocks.records,
                words=sets.words,
                live=sets.live,
                counts=blocks.counts,
                state=blocks.state,
                names=blocks.names,
                parents=blocks.parents,
            )

    def _widen(self, slot: int) -> None:
        words = max(slot // 64 + 1, self.sets.live.size + self.sets.live.size // 4)
        state = self.sets.state
        while int(self.blocks.state[LIVE]):
            wanted = int(state[sets_of.USED]) + 2 * STEP
            if self._fits(wanted * sets_of.row_bytes(words) + 4 * _roomy(wanted, SETS_LOAD)):
                break
            self._give_up(STEP)  # this also frees sets that no block has any more
        fresh = self._new_sets(int(state[sets_of.USED]), words)
        numbers = np.zeros(int(state[sets_of.TOP]), np.uint32)
        counts = self.zeros(words * 64, np.int64)
        counts[: len(self.blocks.counts)] = self.blocks.counts
        with self.turn():
            sets_of.compact(self.sets, fresh, numbers)
            if self.memory is not None:
                self.memory.head[REBUILDING] = 1
            blocks_of.renumber(self.blocks, numbers)
            self._replace(self.blocks._replace(counts=counts), fresh)
            if self.memory is not None:
                self.memory.head[REBUILDING] = 0

    def wake(self) -> None:
        """Let the numbers of blocks that are gone be given out again."""
        if self._has_given_up:
            self._has_given_up = False
            for purge in self.purges.values():
                purge()
        blocks_of.wake(self.blocks)

    def _give_up(self, more: int) -> None:
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
        self.losers.update(sets_of.slots_of(losers))
        self._has_given_up = True
        if self.has_names:
            self.wake()

    def nbytes(self) -> int:
        """Return the bytes that count against the bound. Any thread may ask."""
        return self._inside() + self.outside.whole()

    def _used(self) -> int:
        """Return `nbytes` for the writer, asking only the owners whose bytes may have changed."""
        return self._inside() + self.outside.count()

    def _inside(self) -> int:
        blocks = self.blocks
        used = int(blocks.state[TOP]) * (RECORD_BYTES + (NAME_BYTES if self.has_names else 0))
        tables = blocks.by_key.nbytes + blocks.by_name.nbytes + blocks.counts.nbytes
        return used + tables + sets_of.nbytes(self.sets) + self.waiting.bytes


def _roomy(entries: int, load: float) -> int:
    """Return how many places a table needs for `entries` entries and some growth."""
    return int(entries / load * GROWTH)


def _places(table: NDArray[np.uint32], entries: int, load: float = MOST_LOAD) -> int:
    """Return the size of the larger table that `entries` entries need; 0 if `table` is enough."""
    return _roomy(entries, load) if entries > load * len(table) else 0
