"""Holds, releases or proves one block in one of a rank's places, by a plain name.

A name that is not plain (`indexer.compiled.names.names`) stays as it is: `prove` stops there, and
the functions whose names end in `_plain` or `_known` return `-STRANGE`.
"""

import numpy as np

from warmpath.indexer.compiled.blocks import sets as of
from warmpath.indexer.compiled.blocks.blocks import (
    DEPTH,
    FREED,
    SET,
    Blocks,
    create,
    hold,
    present,
    release,
    sought,
)
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.jit import compiled, inlined, int64
from warmpath.indexer.compiled.names.names import (
    ARE_WAITING,
    CERTAIN,
    DOUBTED,
    OWNS,
    RELEASED,
    SPOTS,
    UNKNOWN,
    Own,
    disown,
    find,
    is_awaited,
    is_named,
    is_odd,
    is_odd_key,
    place_of,
)

STRANGE, OTHER_NAMES = 1, 2
"""Why a block is not held or released: an event or name is not plain; or the engine gives other
names than the index has, so that the rank needs a table of its own."""


@inlined
def _certain(blocks: Blocks, sets: Sets, number: int, fresh: int, doubted: int) -> None:
    """Move a block from a place's slot in doubt to its certain one."""
    hold(blocks, sets, number, fresh)
    release(blocks, sets, number, doubted, True)


@compiled
def prove(
    blocks: Blocks, sets: Sets, mine: Own, spot: int, number: int, allowed: int
) -> tuple[int, int]:
    """Make a block and the blocks before it certain in a place, up to the first that is not in doubt.

    Prove at most `allowed` blocks. Return the number of the first block not proved, 0 for none, and
    the rest of `allowed`: with a rest of 0, there may be more to prove.
    """
    fresh, doubted = mine.slots[spot, CERTAIN], mine.slots[spot, DOUBTED]
    while allowed and doubted >= 0:
        number = present(blocks, number)
        if not number or not of.has(sets, int64(blocks.halves[number, SET]), doubted):
            break
        if is_odd_key(mine, blocks.records[number, 0]):
            break
        _certain(blocks, sets, number, fresh, doubted)
        number = int64(blocks.parents[number])
        allowed -= 1
    return number, allowed


@inlined
def hold_plain(
    blocks: Blocks,
    sets: Sets,
    mine: Own,
    word: np.uint64,
    key: np.uint64,
    spot: int,
    above: int,
    now: int,
) -> int:
    """Let a place hold a block by a plain name; return its number, or -STRANGE or -OTHER_NAMES.

    `above` is `create`'s `parent`.
    """
    fresh, doubted = mine.slots[spot, CERTAIN], mine.slots[spot, DOUBTED]
    if is_odd(mine, word) or is_odd_key(mine, key) or is_awaited(mine, word):
        return -STRANGE
    number = find(blocks, sets, mine, word)
    if number:
        held = int64(blocks.halves[number, SET])
        if of.has(sets, held, fresh) or blocks.records[number, 0] != key:
            return -STRANGE
        if doubted >= 0 and of.has(sets, held, doubted):
            _certain(blocks, sets, number, fresh, doubted)
        else:
            hold(blocks, sets, number, fresh)
        return number
    number, at = sought(blocks, key)
    if number:
        if place_of(mine, sets, int64(blocks.halves[number, SET])):
            return -STRANGE
        if not is_named(blocks, sets, mine, number, word):
            return -OTHER_NAMES
        if above > 0:
            blocks.parents[number] = above
    else:
        number = create(blocks, key, above, now, at)
        blocks.parents[number] = max(above, 0)
        is_named(blocks, sets, mine, number, word)
    hold(blocks, sets, number, fresh)
    return number


@inlined
def hold_known(blocks: Blocks, sets: Sets, mine: Own, word: np.uint64, spot: int) -> int:
    """Let a place hold the block of a plain name; return its number, 0 for none, or -STRANGE."""
    if is_odd(mine, word):
        return -STRANGE
    number = find(blocks, sets, mine, word)
    if number:
        fresh, doubted = mine.slots[spot, CERTAIN], mine.slots[spot, DOUBTED]
        held = int64(blocks.halves[number, SET])
        if of.has(sets, held, fresh):
            return -STRANGE
        if doubted >= 0 and of.has(sets, held, doubted):
            _certain(blocks, sets, number, fresh, doubted)
        else:
            hold(blocks, sets, number, fresh)
    return number


@inlined
def release_plain(blocks: Blocks, sets: Sets, mine: Own, word: np.uint64, spot: int) -> int:
    """Remove a plain name's block from a place; return 0, or -STRANGE if the resolver must do it."""
    if is_odd(mine, word):
        return -STRANGE
    number = find(blocks, sets, mine, word)
    slot = -1
    if number:
        held = int64(blocks.halves[number, SET])
        slot = mine.slots[spot, CERTAIN]
        if slot < 0 or not of.has(sets, held, slot):
            slot = mine.slots[spot, DOUBTED]
            if slot >= 0 and not of.has(sets, held, slot):
                slot = -1
        elif spot % SPOTS == 0:
            mine.state[RELEASED] += 1
    if slot < 0:
        if mine.state[ARE_WAITING]:
            return -STRANGE  # perhaps it names an orphan's block
        mine.state[UNKNOWN] += 1
        return 0
    release(blocks, sets, number, slot, True)
    if mine.state[OWNS]:
        is_gone = blocks.quarters[number, DEPTH] == FREED
        if is_gone or not place_of(mine, sets, int64(blocks.halves[number, SET])):
            disown(mine, word)
    return 0


@compiled
def doubt_all(
    blocks: Blocks, sets: Sets, certain: int, doubted: int, start: int, stop: int
) -> None:
    """Move the blocks with numbers `start` to `stop` (exclusive) from slot `certain` to `doubted`."""
    for number in range(start, stop):
        held = int64(blocks.halves[number, SET])
        if blocks.quarters[number, DEPTH] != FREED and of.has(sets, held, certain):
            hold(blocks, sets, number, doubted)
            release(blocks, sets, number, certain, True)
