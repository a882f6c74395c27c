"""Arrays of zeros in memory of their own: taken page by page as it is written to, and given back whole.

What Python's allocator is given back it mostly keeps, so that tables which grow leave holes behind.
"""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

HUGE = 8 << 20
"""Bytes from which on huge pages are asked for: look-ups at random places then miss one cache less."""


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike, *, sparse: bool = False) -> NDArray[Any]:
    """Return an array of zeros; of a `sparse` one mostly just a beginning is written to."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    size = max(1, count * np.dtype(dtype).itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE and not sparse and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count).reshape(shape)
