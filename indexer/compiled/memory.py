"""Arrays of zeros, each in memory of its own: allocated page by page when written, freed as a whole.

Python's allocator mostly keeps freed memory, so that growing tables would leave holes behind.
"""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

HUGE = 8 << 20
"""Bytes from which on the kernel is asked for huge pages: a random look-up misses less then."""


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike, *, sparse: bool = False) -> NDArray[Any]:
    """Return an array of zeros. In a `sparse` one, usually only the beginning will ever be written."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    size = max(1, count * np.dtype(dtype).itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE and not sparse and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count).reshape(shape)
