"""The memory in which several processes of one router have one index: a file without a name.

The parent makes the file (`new_file`), its children inherit it. It is sparse, and has two halves. One
process writes into one half, and all others read the half that the file's first word names. A successor
of the writer builds the index anew in the other half, from what the first one holds
(`indexer.processes.heritage`), and then lets the word name that: so readers always have a whole one.

A half begins with `head`, words that say where the arrays are; then come the versions of the ranks'
rows, the places of slots, and the rows (`indexer.processes.rows`); then the arrays, each mapped alone.
"""

import mmap
import os
import weakref
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from warmpath.indexer.compiled.outside import advise, size_of

PAGE = mmap.ALLOCATIONGRANULARITY
HALF = 1 << 40
"""Bytes of a half, of which those that nobody writes take no memory."""
_AT_ONCE = 1 << 36
"""Bytes that are mapped at once to give them back."""

(
    VERSION,
    LAYOUT,
    WANTED,
    FACTS,
    LIVES,
    READY,
    WRITER,
    REBUILDING,
    EVICTED,
    USED,
    MOST,
    EPOCH,
    KNOWN,
) = range(13)
"""Words of `head`: the version of the index (`compiled.steps`); how often an array was replaced; until
when a reader wants the writer to pause (ns); how often a rank's row was written, and how often a life
began; whether all pods of Redis were copied; the writer's process; whether sets are renumbered; blocks
given up, bytes in use and at most; as floats, when the times of matches begin, and up to when all events
were taken (s)."""
ARRAYS = 16
"""The first of the words that name arrays (`SHARED`): the offset, rows and columns of each."""
SHARED = {
    "by_key": np.uint32, "records": np.uint64, "words": np.uint64, "live": np.uint64,
    "counts": np.int64, "state": np.int64, "names": np.uint64, "parents": np.uint32,
}  # fmt: skip
"""The arrays that other processes read, with their types."""
SLOTS = 1 << 20
ROWS = 1 << 15
ROW_BYTES = 1 << 15
_VERSIONS = PAGE
_PLACES = _VERSIONS + 8 * ROWS
_ROWS = _PLACES + 8 * SLOTS
_FIRST = _ROWS + ROWS * ROW_BYTES

Words = NDArray[np.int64]


def new_file() -> int:
    """Return the descriptor of a new file. Raises OSError."""
    descriptor = os.memfd_create("warmpath-index")
    os.ftruncate(descriptor, PAGE + 2 * HALF)
    return descriptor


class File:
    """The file, which is open for as long as anybody has this."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self._word = _array(_Piece(descriptor, PAGE), (1,), np.int64)

    @property
    def current(self) -> int:
        """The half that is read: 0 or 1; -1 before the first is written."""
        return int(self._word[0]) - 1

    def read(self, half: int) -> None:
        """Let readers read a half from now on."""
        self._word[0] = half + 1


class _Piece(mmap.mmap):
    """A mapped part of the file, which can be asked when nobody uses it any more."""


class Memory:
    """One half. The writer calls `zeros`; readers call `view`, for what the writer's `head` names."""

    def __init__(self, file: File, half: int) -> None:
        self.file = file
        self.half = half
        self._descriptor = file.descriptor
        self._base = PAGE + half * HALF
        self._lock = RLock()
        self._top = _FIRST
        self._free: list[tuple[int, int]] = []
        """Parts that are not used any more, each its begin and end, in order."""
        self._offsets: dict[int, int] = {}
        """The offsets of the writer's arrays, by their addresses."""
        self.head: Words = self.view(0, (PAGE // 8,), np.int64)
        self.times: NDArray[np.float64] = self.head.view(np.float64)
        self.versions: Words = self.view(_VERSIONS, (ROWS,), np.int64)
        self.places: NDArray[np.uint64] = self.view(_PLACES, (SLOTS,), np.uint64)
        self.rows: NDArray[np.uint8] = self.view(_ROWS, (ROWS, ROW_BYTES), np.uint8)

    def view(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array at an offset of the half, which is a whole number of pages."""
        size = _whole(size_of(shape, dtype))
        piece = _Piece(self._descriptor, size, offset=self._base + offset)
        return _array(piece, shape, dtype)

    def zeros(
        self, shape: int | tuple[int, ...], dtype: DTypeLike, *, sparse: bool = False
    ) -> NDArray[Any]:
        """Return an array of zeros, as `outside.zeros`; its part is free once nobody has the array."""
        shape = (shape,) if isinstance(shape, int) else shape
        size = _whole(size_of(shape, dtype))
        offset = self._take(size)
        piece = _Piece(self._descriptor, size, offset=self._base + offset)
        advise(piece, size, sparse=sparse)
        array = _array(piece, shape, dtype)
        address = array.__array_interface__["data"][0]
        with self._lock:
            self._offsets[address] = offset
        weakref.finalize(piece, self._let_go, address, offset, size).atexit = False
        return array

    def offset_of(self, array: NDArray[Any]) -> int:
        """Return where an array of `zeros` is."""
        return self._offsets[array.__array_interface__["data"][0]]

    def name(self, **arrays: NDArray[Any]) -> None:
        """Say where these arrays (`SHARED`) are; readers look there from the next step on."""
        self.head[REBUILDING] = 1
        for number, name in enumerate(SHARED):
            array = arrays[name]
            at = ARRAYS + 3 * number
            columns = array.shape[1] if array.ndim == 2 else 0
            self.head[at : at + 3] = self.offset_of(array), array.shape[0], columns
        self.head[LAYOUT] += 1
        self.head[REBUILDING] = 0

    def named(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `name` names."""
        found = {}
        for number, (name, dtype) in enumerate(SHARED.items()):
            at = ARRAYS + 3 * number
            offset, rows, columns = self.head[at : at + 3].tolist()
            found[name] = self.view(offset, (rows, columns) if columns else (rows,), dtype)
        return found

    def clear(self) -> None:
        """Give all memory of the half back. Whoever still reads it reads zeros."""
        for offset in range(0, HALF, _AT_ONCE):
            self._give_back(offset, _AT_ONCE)

    def _take(self, size: int) -> int:
        with self._lock:
            for number, (start, stop) in enumerate(self._free):
                if stop - start >= size:
                    self._free[number : number + 1] = (
                        [(start + size, stop)] if stop - start > size else []
                    )
                    return start
            self._top += size
            return self._top - size

    def _let_go(self, address: int, offset: int, size: int) -> None:
        with self._lock:
            self._offsets.pop(address, None)
            self._give_back(offset, size)
            free = sorted([*self._free, (offset, offset + size)])
            self._free = free[:1]
            for start, stop in free[1:]:
                if start == self._free[-1][1]:
                    self._free[-1] = self._free[-1][0], stop
                else:
                    self._free.append((start, stop))

    def _give_back(self, offset: int, size: int) -> None:
        with mmap.mmap(self._descriptor, size, offset=self._base + offset) as piece:
            piece.madvise(mmap.MADV_REMOVE)


def _whole(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _array(piece: mmap.mmap, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(piece, dtype, count).reshape(shape)
