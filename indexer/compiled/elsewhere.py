"""The index that another process writes, read in the memory that both have (`compiled.memory`).

No reader sees a half-written block. The writer changes blocks in steps, and a version is odd during
each (`compiled.steps`). A look-up, with the places of the slots that it found, counts only if the
version was even before it and is the same after it; else it is made again. After a few attempts in vain
the reader asks the writer to pause between two steps, for as long as its look-up may take.

A writer that was killed leaves a step half done. Its memory then stands still and may be read: compiled
code changes a block by one write, its set's number, after it has written that set, so that each block is
found as it was before the step or as it is after it. Only while sets are renumbered this is not so;
then, and while a writer that lives stands still in a step, nothing is found.
"""

import os
import time
from collections.abc import Callable
from itertools import count as attempts
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.array_index import LATEST, Lookups
from warmpath.indexer.compiled.blocks.blocks import LIVE
from warmpath.indexer.compiled.memory import (
    EPOCH,
    EVICTED,
    LAYOUT,
    MOST,
    REBUILDING,
    USED,
    VERSION,
    WANTED,
    WRITER,
    File,
    Memory,
)
from warmpath.indexer.compiled.steps import is_at, version_of
from warmpath.indexer.index.contract import IndexStats, Stretch

IN_VAIN = 2
"""Attempts after which the writer is asked to pause."""
PAUSE_NANOSECONDS = 2_000_000
SLEEP_SECONDS = 2e-5
LOOK_SECONDS = 0.002
"""Seconds after which a reader that waits looks whether the writer still lives."""
MOST_SECONDS = 0.1
"""Seconds after which nothing is found, if a writer that lives does not end its step."""


class _Half(NamedTuple):
    """A half as this process reads it."""

    memory: Memory
    layout: int
    arrays: dict[str, NDArray[Any]]
    view: tuple[NDArray[Any], ...]


class IndexElsewhere(Lookups):
    """Answers from blocks that another process writes. Any thread may call it."""

    def __init__(self, file: File, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._lock = Lock()
        self._half: _Half | None = None
        self._found: NDArray[np.int64] = np.empty((256, 3), np.int64)

    @property
    def memory(self) -> Memory | None:
        """The half that is read now; None before there is one."""
        current = self._file.current
        half = self._half
        if current >= 0 and (half is None or half.memory.half != current):
            half = self._half = self._attached(Memory(self._file, current))
        return half.memory if half is not None else None

    def _read(self, look: Callable[..., int], arguments: tuple[Any, ...]) -> list[Stretch]:
        """Look up; in place of its slot, each stretch has the word of the slot's place."""
        with self._lock:
            return self._looked_up(look, arguments)

    def _looked_up(self, look: Callable[..., int], arguments: tuple[Any, ...]) -> list[Stretch]:
        begun = 0.0
        is_still = False
        for attempt in attempts():
            memory, half = self.memory, self._half
            if memory is None or half is None:
                return []
            head = memory.head
            version = version_of(head, VERSION)
            if half.layout != head[LAYOUT]:
                self._half = self._attached(memory)
                continue
            if not version & 1 or is_still:
                ended = look(*half.view, *arguments, self._found)
                if ended > len(self._found):
                    self._found = np.empty((2 * ended, 3), np.int64)
                    continue
                slots, starts, stops = self._found[:ended].T
                places = memory.places[slots].tolist()
                if is_at(head, VERSION, version) and not head[REBUILDING]:
                    return list(map(Stretch, places, starts.tolist(), stops.tolist()))
            if is_still:
                return []
            now = time.monotonic()
            begun = begun or now
            if attempt >= IN_VAIN:
                head[WANTED] = time.monotonic_ns() + PAUSE_NANOSECONDS
            if now - begun > LOOK_SECONDS:
                is_still = not _lives(int(head[WRITER]))
                if now - begun > MOST_SECONDS:
                    return []
            time.sleep(SLEEP_SECONDS if attempt else 0)
        raise AssertionError

    def _attached(self, memory: Memory) -> _Half:
        while True:
            layout, version = int(memory.head[LAYOUT]), version_of(memory.head, VERSION)
            arrays = memory.named()
            if is_at(memory.head, VERSION, version) or not _lives(int(memory.head[WRITER])):
                break
        records = arrays["records"]
        view = (
            arrays["by_key"],
            records,
            records.view(np.uint32),
            records.view(np.uint16),
            arrays["words"],
            arrays["live"],
        )
        return _Half(memory, layout, arrays, view)

    def now(self) -> int:
        memory = self.memory
        begun = self._clock() if memory is None else float(memory.times[EPOCH])
        return min(LATEST, max(0, int(self._clock() - begun)))

    def stats(self) -> IndexStats:
        memory, half = self.memory, self._half
        if memory is None or half is None:
            return IndexStats(keys=0, entries=0, slots=0)
        if half.layout != memory.head[LAYOUT]:
            half = self._half = self._attached(memory)
        counts = half.arrays["counts"]
        return IndexStats(
            keys=int(half.arrays["state"][LIVE]),
            entries=int(counts.sum()),
            slots=int((counts > 0).sum()),
            bytes=int(memory.head[USED]),
            max_bytes=int(memory.head[MOST]),
            evicted=int(memory.head[EVICTED]),
        )


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
