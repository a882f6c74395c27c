"""The bytes that ranks take outside the arrays, counted anew only where they may have changed.

`zeros` makes arrays in memory of their own: allocated page by page when written, freed as a whole.
Python's allocator mostly keeps freed memory, so that growing tables would leave holes behind.
"""

import contextlib
import math
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Outside:
    """The sum of all owners' bytes. With thousands of owners, asking each of them takes tens of ms.

    One thread calls it; only `whole` may be called by any thread.
    """

    def __init__(self) -> None:
        self._bytes_of: dict[object, Callable[[], int]] = {}
        self._counted: dict[object, int] = {}
        """Each owner's bytes at its last count."""
        self._sum = 0
        self._changed: dict[object, None] = {}
        """Owners whose bytes may have changed since, and the one at work."""
        self._at_work: object = None

    def add(self, owner: object, bytes_of: Callable[[], int]) -> None:
        """Count an owner's bytes, which `bytes_of` returns."""
        self._bytes_of[owner] = bytes_of
        self._counted[owner] = 0
        self.changes(owner)

    def remove(self, owner: object) -> None:
        del self._bytes_of[owner]
        self._changed.pop(owner, None)
        self._sum -= self._counted.pop(owner)

    def changes(self, owner: object) -> None:
        """Ask an owner at each count, until another one is at work; ignore one that was removed."""
        if owner in self._bytes_of:
            self._changed[owner] = None
            self._at_work = owner

    def changed(self, owner: object) -> None:
        """Ask an owner at the next count."""
        self._changed[owner] = None

    def count(self) -> int:
        """Return the sum, after asking the owners whose bytes may have changed."""
        for owner in self._changed:
            now = self._bytes_of[owner]()
            self._sum += now - self._counted[owner]
            self._counted[owner] = now
        self._changed = {self._at_work: None} if self._at_work in self._changed else {}
        return self._sum

    def whole(self) -> int:
        """Return the sum after asking every owner."""
        return sum(bytes_of() for bytes_of in [*self._bytes_of.values()])


HUGE = 8 << 20
"""Bytes from which on the kernel is asked for huge pages: a random look-up misses less then."""


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike, *, sparse: bool = False) -> NDArray[Any]:
    """Return an array of zeros. In a `sparse` one, usually only the beginning will ever be written."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    size = size_of(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise(memory, size, sparse=sparse)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def advise(memory: mmap.mmap, size: int, *, sparse: bool) -> None:
    """Ask the system for huge pages, where `size` bytes of memory will be used densely."""
    if size >= HUGE and not sparse and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)


Zeros = Callable[..., NDArray[Any]]
"""`zeros`, or what makes such arrays in the memory of several processes (`compiled.memory`)."""


def size_of(shape: int | tuple[int, ...], dtype: DTypeLike) -> int:
    """Return the bytes of an array, at least one."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    return max(1, count * np.dtype(dtype).itemsize)
