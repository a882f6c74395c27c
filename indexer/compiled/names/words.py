"""Sets of 64-bit words: arrays with open addressing. 0 marks an empty place, so no set contains 0.

The caller makes room before it adds. Deleting shifts the following words back
(`indexer.compiled.blocks.table`).
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.table import after, home, stays
from warmpath.indexer.compiled.jit import compiled, inlined

LEAST = 16


@inlined
def has(words: NDArray[np.uint64], word: np.uint64) -> bool:
    """Whether a word is in a set."""
    at = home(word, words.size)
    while words[at] != 0:
        if words[at] == word:
            return True
        at = after(at, words.size)
    return False


@compiled
def add(words: NDArray[np.uint64], more: NDArray[np.uint64]) -> int:
    """Add words; return how many were not in the set before. There must be room."""
    added = 0
    for word in more:
        if word == 0 or has(words, word):
            continue
        at = home(word, words.size)
        while words[at] != 0:
            at = after(at, words.size)
        words[at] = word
        added += 1
    return added


@compiled
def discard(words: NDArray[np.uint64], less: NDArray[np.uint64]) -> int:
    """Delete words; return how many were in the set."""
    deleted = 0
    for word in less:
        if word == 0 or not has(words, word):
            continue
        hole = home(word, words.size)
        while words[hole] != word:
            hole = after(hole, words.size)
        at = hole
        while True:
            at = after(at, words.size)
            if words[at] == 0:
                break
            if not stays(hole, home(words[at], words.size), at):
                words[hole] = words[at]
                hole = at
        words[hole] = 0
        deleted += 1
    return deleted


def with_room(words: NDArray[np.uint64], used: int, more: int) -> NDArray[np.uint64]:
    """Return a set of `used` words, copied to another array unless `more` words fit into this one."""
    wanted = used + more
    if 2 * wanted <= len(words) <= max(LEAST, 16 * wanted):
        return words
    fresh = np.zeros(max(LEAST, 4 * wanted), np.uint64)
    add(fresh, words[words != 0])
    return fresh
