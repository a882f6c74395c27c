"""The embedded index: records and interned sets in flat arrays, worked on by compiled functions.

Concurrency. One thread writes; any number may read (`match`, `stretches`, `count`, `stats`). One lock
makes each step of at most `STEP` blocks and each look-up atomic, so a reader sees the index as it was
between two steps: during a long `add` it sees the first of the blocks, during a long `remove` the last
ones, never half a block. The writer gives way between steps while a reader waits, because Python's locks
are not fair. The arrays themselves, and their bound of bytes, are in `indexer.compiled.arrays`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.arrays import STEP, Arrays
from warmpath.indexer.compiled.blocks import blocks as blocks_of
from warmpath.indexer.compiled.blocks import give_up as leave
from warmpath.indexer.compiled.blocks import look_up, table
from warmpath.indexer.compiled.blocks.blocks import LIVE, TOP
from warmpath.indexer.compiled.memory import EPOCH, Memory
from warmpath.indexer.compiled.scan.scanned import room
from warmpath.indexer.index.contract import IndexStats, Links, Stretch
from warmpath.indexer.keys.key import Chain

DEFAULT_BYTES = 1 << 30
LEAST_BYTES = 512 << 10
"""The smallest bound: it holds the tables and a few steps of writing."""
LATEST = 0xFFFF
"""The highest time of a match, in seconds, that fits into a record."""


_stretch = partial(tuple.__new__, Stretch)
"""Makes a `Stretch` of a list in a third of the time that calling the class takes."""

NO_LINKS = np.empty(0, np.int64), np.empty(0, np.uint64)


class Lookups:
    """Look-ups of prompts; the forms of the index say how arrays are read, and what the time is."""

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:
        if chain.made:
            made = np.frombuffer(chain.made, "<u8").astype(np.uint64, copy=False)
            return self._read(look_up.of_keys, (made, leading, self.now()))
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
        return self._read(look_up.of_keys, (np.asarray(keys, np.uint64), False, self.now()))

    def _read(self, look: Callable[..., int], arguments: tuple[Any, ...]) -> list[Stretch]:
        raise NotImplementedError

    def now(self) -> int:
        """Return the time to stamp matched blocks with, in seconds, at most `LATEST`."""
        raise NotImplementedError


class ArrayIndex(Lookups):
    """Answers from blocks in arrays. `clock` returns seconds; last matches are kept in whole seconds.

    The arrays lie in `memory`, if it is given, where other processes read them (`compiled.elsewhere`).
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_BYTES,
        clock: Callable[[], float] = time.monotonic,
        memory: Memory | None = None,
    ) -> None:
        self.arrays = Arrays(max_bytes, memory)
        self.waiting = self.arrays.waiting
        self._clock = clock
        self._epoch = clock()
        self._tell_epoch()
        self._found: NDArray[np.int64] = np.empty((256, 3), np.int64)
        self._dropped: set[int] = set()
        self._sweeping: set[int] = set()
        self._cursor = 0
        self.scratch = room(0)
        """The arrays into which the writer scans batches (`compiled.scan`), shared by all ranks."""

    # Reading

    def _read(self, look: Callable[..., int], arguments: tuple[Any, ...]) -> list[Stretch]:
        arrays = self.arrays
        arrays.readers += 1
        with arrays.lock:
            arrays.readers -= 1
            count = look(*arrays.view, *arguments, self._found)
            if count > len(self._found):
                self._found = np.empty((2 * count, 3), np.int64)
                count = look(*arrays.view, *arguments, self._found)
            rows = self._found[:count].tolist()
        return list(map(_stretch, rows))

    def count(self, slot: int) -> int:
        counts = self.arrays.blocks.counts
        return int(counts[slot]) if slot < len(counts) else 0

    def holds(self, slot: int, keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return 1 for each key that `slot` holds, and 0 for the others."""
        there = np.zeros(len(keys), np.uint8)
        if slot < len(self.arrays.blocks.counts):
            blocks_of.holds(self.arrays.blocks, self.arrays.sets, slot, keys, there)
        return there

    def stats(self) -> IndexStats:
        counts = self.arrays.blocks.counts
        return IndexStats(
            keys=int(self.arrays.blocks.state[LIVE]),
            entries=int(counts.sum()),
            slots=int((counts > 0).sum()),
            bytes=self.arrays.nbytes(),
            max_bytes=self.arrays.max_bytes,
            evicted=self.arrays.evicted,
        )

    def now(self) -> int:
        return min(LATEST, int(self._clock() - self._epoch))

    def _tell_epoch(self) -> None:
        if self.arrays.memory is not None:
            self.arrays.memory.times[EPOCH] = self._epoch

    # Writing

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:
        if self._is_dropped(slot):
            raise ValueError(f"slot {slot} is dropped and not swept yet")
        array = np.asarray(keys, np.uint64)
        starts, above = NO_LINKS
        if links:
            starts = np.array([position for position, _ in links], np.int64)
            above = np.array([key for _, key in links], np.uint64)
        previous = 0
        for start in range(0, len(array), STEP):
            stop = min(start + STEP, len(array))
            if not self.arrays.reserve(stop - start, slot) and start:
                # The block before may have been given up to make room.
                blocks = self.arrays.blocks
                previous = (
                    int(table.number_of(blocks.by_key, blocks.records, array[start - 1])) or -1
                )
            with self.arrays.turn():
                previous = blocks_of.add(
                    self.arrays.blocks,
                    self.arrays.sets,
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
        if self._is_dropped(slot) or slot >= len(self.arrays.blocks.counts):
            return
        array = np.asarray(keys, np.uint64)
        for start in range(0, len(array), STEP):
            stop = min(start + STEP, len(array))
            self.arrays.reserve(stop - start, slot)
            with self.arrays.turn():
                blocks_of.remove(
                    self.arrays.blocks,
                    self.arrays.sets,
                    slot,
                    array,
                    start,
                    stop,
                    self.arrays.has_names,
                )

    def drop(self, slot: int) -> None:
        if self._is_dropped(slot) or slot >= len(self.arrays.blocks.counts):
            return
        with self.arrays.turn():
            self.arrays.sets.live[slot >> 6] &= ~_bit(slot)
            self.arrays.blocks.counts[slot] = 0
        self._dropped.add(slot)

    def _is_dropped(self, slot: int) -> bool:
        return slot in self._dropped or slot in self._sweeping

    def sweep(self, budget: int) -> Iterable[int]:
        if self.now() == LATEST:
            with self.arrays.turn():
                leave.age(self.arrays.blocks, LATEST // 2)
            self._epoch += LATEST // 2
            self._tell_epoch()
        if not self._sweeping:
            if not self._dropped:
                return ()
            # Slots dropped from here on wait for the next round: this one may have passed their blocks.
            self._sweeping, self._dropped = self._dropped, set()
            self._cursor = 1
        gone = np.zeros_like(self.arrays.sets.live)
        for slot in self._sweeping:
            gone[slot >> 6] |= _bit(slot)
        end = min(self._cursor + budget, int(self.arrays.blocks.state[TOP]))
        for start in range(self._cursor, end, STEP):
            self.arrays.reserve(STEP, 0)
            with self.arrays.turn():
                blocks_of.sweep(
                    self.arrays.blocks,
                    self.arrays.sets,
                    gone,
                    start,
                    min(start + STEP, end),
                    self.arrays.has_names,
                )
        self._cursor = end
        if end < int(self.arrays.blocks.state[TOP]):
            return ()
        with self.arrays.turn():
            self.arrays.sets.live[:] |= gone
        swept, self._sweeping = self._sweeping, set()
        return swept

    def take_losers(self) -> set[int]:
        losers, self.arrays.losers = self.arrays.losers, set()
        return losers - self._dropped - self._sweeping


def _bit(slot: int) -> np.uint64:
    return np.uint64(1) << np.uint64(slot & 63)
