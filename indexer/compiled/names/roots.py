"""Roots, the keys before a prompt's first block, by the adapters and salts that events used lately.

Adapters and salts are compared whole, not only their hashes: else a tenant could choose a salt that
leads into another tenant's chain. Each pair has a few possible places, where another pair may replace
it; the resolver then computes its root again.
"""

from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.table import after, home
from warmpath.indexer.compiled.jit import inlined
from warmpath.indexer.compiled.keys import bytes_key

TEXT = 128
"""The most bytes of an adapter and a salt together."""
LEAST, MOST = 1, 1 << 10
"""The fewest and the most places."""
TRIES = 4
"""How many places, one behind the other, an adapter and salt may lie in."""


class RootTable(NamedTuple):
    """Roots. Shapes: n places."""

    words: NDArray[np.uint64]
    """(n): a hash of each adapter and salt."""
    texts: NDArray[np.uint8]
    """(n, 128): the adapter, followed by the salt."""
    lengths: NDArray[np.int64]
    """(n, 2): the lengths of adapter and salt; 0 and 0 where a place is empty."""
    keys: NDArray[np.uint64]
    """(n): the roots."""


def new_roots(places: int = LEAST) -> RootTable:
    """Return arrays without any root."""
    return RootTable(
        words=np.zeros(places, np.uint64),
        texts=np.zeros((places, TEXT), np.uint8),
        lengths=np.zeros((places, 2), np.int64),
        keys=np.zeros(places, np.uint64),
    )


def nbytes(roots: RootTable) -> int:
    """Return the bytes that roots take."""
    return sum(array.nbytes for array in roots)


@inlined
def _is_at(
    roots: RootTable,
    place: int,
    data: NDArray[np.uint8],
    lora_at: int,
    lora: int,
    salt_at: int,
    salt: int,
) -> bool:
    """Whether the root of an adapter and a salt that lie in `data` is in a place."""
    if roots.lengths[place, 0] != lora or roots.lengths[place, 1] != salt:
        return False
    for offset in range(lora):
        if roots.texts[place, offset] != data[lora_at + offset]:
            return False
    for offset in range(salt):
        if roots.texts[place, lora + offset] != data[salt_at + offset]:
            return False
    return True


@inlined
def place_of(
    roots: RootTable, data: NDArray[np.uint8], lora_at: int, lora: int, salt_at: int, salt: int
) -> int:
    """Return the place of the root of an adapter and a salt that lie in `data`; -1 where it has none."""
    word = bytes_key(data, lora_at, lora, np.uint64(lora))
    word = bytes_key(data, salt_at, salt, word)
    place = home(word, roots.words.size)
    for _ in range(TRIES):
        if roots.words[place] == word and _is_at(roots, place, data, lora_at, lora, salt_at, salt):
            return place
        place = after(place, roots.words.size)
    return -1


def learn(roots: RootTable, lora: str, salt: str, key: int) -> RootTable:
    """Return the table with a root added, or unchanged where adapter and salt are not short ASCII."""
    text = (lora + salt).encode()
    if not 0 < len(text) <= TEXT or not text.isascii():
        return roots
    first = xxhash.xxh64_intdigest(lora.encode(), len(lora))
    word = xxhash.xxh64_intdigest(salt.encode(), first)
    at = _place_for(roots, word)
    while roots.lengths[at].any() and roots.words[at] != word and len(roots.words) < MOST:
        roots = _larger(roots)
        at = _place_for(roots, word)
    roots.words[at] = word
    roots.texts[at, : len(text)] = np.frombuffer(text, np.uint8)
    roots.lengths[at] = len(lora), len(salt)
    roots.keys[at] = key
    return roots


def _place_for(roots: RootTable, word: int) -> int:
    """Return the place that has a word, or else an empty one, or else the one to overwrite."""
    places = len(roots.words)
    begin = int(home(np.uint64(word), places))
    tried = [(begin + step) % places for step in range(TRIES)]
    empty = (at for at in tried if not roots.lengths[at].any())
    return next((at for at in tried if roots.words[at] == word), next(empty, begin))


def _larger(old: RootTable) -> RootTable:
    fresh = new_roots(max(16, 4 * len(old.words)))
    for at in np.flatnonzero(old.lengths.any(axis=1)).tolist():
        to = _place_for(fresh, int(old.words[at]))
        fresh.words[to], fresh.keys[to] = old.words[at], old.keys[at]
        fresh.texts[to], fresh.lengths[to] = old.texts[at], old.lengths[at]
    return fresh
