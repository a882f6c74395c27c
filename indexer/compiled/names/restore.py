"""Packs a rank's plain names for another process, and restores a range of them there.

`saving` calls these functions; `indexer.resolve.saved` defines the form in which the names are saved.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.blocks import (
    DEPTH,
    SET,
    Blocks,
    behind,
    create,
    hold,
    parent_of,
    sought,
)
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.jit import compiled, inlined, int64
from warmpath.indexer.compiled.names.names import SPOTS, Own, is_named, is_odd, is_odd_key, place_of
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.resolve.saved import DOUBT_BITS, SavedPlain

TIERS = list(Tier)


def pack(
    blocks: Blocks,
    words: NDArray[np.uint64],
    names: NDArray[np.uint64],
    numbers: NDArray[np.uint32],
    groups: list[int],
    certain: Mapping[Spot, int],
    doubted: Mapping[Spot, int],
) -> SavedPlain:
    """Return a rank's plain names to save, given the block of each, and the rank's groups and slots.

    `words` are those of the sets.
    """
    order = np.argsort(blocks.quarters[numbers, DEPTH], kind="stable")
    names, numbers = names[order], numbers[order]
    held = blocks.halves[numbers, SET]
    places = np.zeros((len(groups), len(names)), np.uint8)
    for slots, shift in ((certain, 0), (doubted, DOUBT_BITS)):
        for (tier, group), slot in slots.items():
            if group in groups:
                has = words[held, slot >> 6] >> np.uint64(slot & 63) & np.uint64(1)
                bits = has.astype(np.uint8) << np.uint8(TIERS.index(tier) + shift)
                places[groups.index(group)] |= bits
    above = blocks.parents[numbers]
    parents = np.where(above != 0, blocks.records[above, 0], np.uint64(0))
    keys = blocks.records[numbers, 0]
    return SavedPlain(
        TIERS, _packed(names), _packed(keys), _packed(parents), places.tobytes(), groups
    )


def _packed(words: NDArray[np.uint64]) -> bytes:
    return words.astype("<u8").tobytes()


@inlined
def _slot(mine: Own, row: int, bit: int) -> int:
    """Return the slot for a bit of `places` in a group's row; -1 for none."""
    if row < 0:
        return -1
    return int64(mine.slots[row * SPOTS + bit % DOUBT_BITS, bit // DOUBT_BITS])


@inlined
def _has_slot(mine: Own, rows: NDArray[np.int64], places: NDArray[np.uint8], at: int) -> bool:
    for group in range(rows.size):
        for bit in range(2 * DOUBT_BITS):
            if places[group, at] >> bit & 1 and _slot(mine, rows[group], bit) >= 0:
                return True
    return False


@compiled
def restore(
    blocks: Blocks,
    sets: Sets,
    mine: Own,
    names: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    parents: NDArray[np.uint64],
    places: NDArray[np.uint8],
    rows: NDArray[np.int64],
    start: int,
    stop: int,
    now: int,
) -> int:
    """Let the rank hold the blocks of plain names `start` to `stop` (exclusive).

    `places` has a row for each saved group, and `rows` that group's row in `Own.groups`, -1 for none.
    Return `stop`, or the position of a name for which the rank needs a table of its own first. There
    must be room for as many blocks as there are bits in `places`, and for one more for each name.
    """
    for at in range(start, stop):
        word, key = names[at], keys[at]
        if is_odd(mine, word) or is_odd_key(mine, key):
            continue
        if not _has_slot(mine, rows, places, at):
            continue
        above = behind(blocks, parents[at])
        number, place = sought(blocks, key)
        if number == 0:
            number = create(blocks, key, above, now, place)
            blocks.parents[number] = 0
        elif place_of(mine, sets, int64(blocks.halves[number, SET])):
            continue
        if blocks.parents[number] == 0:
            blocks.parents[number] = parent_of(blocks, parents[at])
        if not is_named(blocks, sets, mine, number, word):
            return at
        for group in range(rows.size):
            for bit in range(2 * DOUBT_BITS):
                slot = _slot(mine, rows[group], bit)
                if places[group, at] >> bit & 1 and slot >= 0:
                    hold(blocks, sets, number, slot)
    return stop
