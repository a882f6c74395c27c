"""Steps of writing that readers in other processes notice: a version is odd while one is under way.

A reader reads the version, then what it wants, then the version again: where that was odd or has
changed, what it read may be half-written, and it reads again. `fence` keeps the processor, and the
compiler, from moving reads and writes across these (x86-64 keeps the order of writes anyway, arm64 not).
"""

from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled, int64, intrinsic

Words = NDArray[np.int64]


@intrinsic
def fence(_: Any) -> Any:
    """Order all reads and writes before it before all that come after it."""
    from numba.core import types  # noqa: PLC0415  this module is imported without Numba, too

    def generate(context: Any, builder: Any, *_: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate


@compiled
def begin(words: Words, at: int) -> None:
    """Begin a step: its version, `words[at]`, is odd from here on."""
    words[at] += 1
    fence()


@compiled
def end(words: Words, at: int) -> None:
    """End a step: its version is even, and another one than before."""
    fence()
    words[at] += 1


@compiled
def version_of(words: Words, at: int) -> int:
    """Return a version, before what it stands for is read."""
    version = words[at]
    fence()
    return int64(version)


@compiled
def is_at(words: Words, at: int, version: int) -> bool:
    """Return whether a version is the same after what it stands for was read."""
    fence()
    return bool(words[at] == version)


class Step:
    """A step, while its context is open: this process's readers wait for it, those of others notice."""

    def __init__(self, lock: Lock, words: Words, at: int) -> None:
        self._lock = lock
        self._words = words
        self._at = at

    def __enter__(self) -> None:
        self._lock.acquire()
        begin(self._words, self._at)

    def __exit__(self, *_: object) -> None:
        end(self._words, self._at)
        self._lock.release()
