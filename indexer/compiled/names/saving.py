"""Saves a rank's plain names for the next process, and restores them in steps, under the index's lock.

`restore` does the work; `indexer.resolve.saved` defines the form in which the names are saved.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.arrays import STEP
from warmpath.indexer.compiled.names.plain import PlainNames
from warmpath.indexer.compiled.names.restore import TIERS, pack, restore
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.resolve.saved import DOUBT_BITS, SavedPlain


def save(index: ArrayIndex, slots: RankSlots, plain: PlainNames) -> SavedPlain:
    """Return all plain names of a rank, and which of its places hold them."""
    arrays = index.arrays
    words, groups = arrays.sets.words, list(plain.groups)
    return pack(arrays.blocks, words, *plain.all(), groups, slots.certain, slots.doubted)


def claim_slots(slots: RankSlots, saved: SavedPlain) -> None:
    """Claim a slot for each place that was in use."""
    for group, held in zip(saved.groups, _rows(saved), strict=True):
        used = int(np.bitwise_or.reduce(held, initial=0))
        for bit, tier in enumerate(TIERS):
            if used >> bit & (1 | 1 << DOUBT_BITS):
                slots.slot((tier, group))
            if used >> bit & 1 << DOUBT_BITS:
                slots.doubt((tier, group))


def hold_saved(index: ArrayIndex, plain: PlainNames, saved: SavedPlain) -> Iterator[None]:
    """Hold the names that were saved; yield whenever the rank needs a table of its own first."""
    names, keys, parents = (
        np.frombuffer(packed, "<u8").astype(np.uint64)
        for packed in (saved.names, saved.keys, saved.parents)
    )
    places = _rows(saved)
    rows = np.array([plain.groups.get(group, -1) for group in saved.groups], np.int64)
    # Each bit changes a block's set, and a parent that is gone takes a new number.
    bits = np.unpackbits(places[:, :, np.newaxis], axis=2).sum(axis=(0, 2))
    most = 1 + int(bits.max(initial=1))
    done = 0
    while done < len(names):
        stop = min(done + STEP // most, len(names))
        plain.reserve()
        arrays = index.arrays
        with arrays.turn():
            done = restore(
                arrays.blocks,
                arrays.sets,
                plain.own,
                names,
                keys,
                parents,
                places,
                rows,
                done,
                stop,
                index.now(),
            )
        if done < stop:
            yield


def _rows(saved: SavedPlain) -> NDArray[np.uint8]:
    """Return `SavedPlain.places` as one row a group."""
    names = len(saved.names) // WORD_BYTES
    return np.frombuffer(saved.places, np.uint8).reshape(len(saved.groups), names)
