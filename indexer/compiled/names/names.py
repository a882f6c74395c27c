"""The names that one rank's engine gives to blocks, where nothing is odd about them; one file of arrays.

A *plain* name stands for one block and is held once in each place (tier and cache group) that holds
it. Most names are plain, and in most fleets all pods give a block the same name. So the block keeps the
name (`blocks.names`), and the rank's slots in the block's set show that the rank holds it. A rank whose
engine gives other names than the first engine did keeps its own table instead, for all of its names.

Any other name is *odd*: one with a second copy, a second name of a key, the name of a chunk of several
blocks. The pure resolver follows odd names, and compiled code leaves them and their keys alone
(`Own.odd`, `Own.odd_keys`). It also leaves a plain name alone for which orphans wait
(`indexer.index.orphans`).

Each place has two slots (`Own.slots`): one for certain blocks, and one for blocks in doubt, which were
held when events were missed and are not proven since.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks import sets as of
from warmpath.indexer.compiled.blocks import table
from warmpath.indexer.compiled.blocks.blocks import (
    DEPTH,
    FREED,
    SET,
    TOP,
    Blocks,
    hold,
    name,
    parent_of,
    release,
    unname,
)
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.blocks.table import after, home, number_at, seek, stays
from warmpath.indexer.compiled.jit import compiled, inlined, inner, int64
from warmpath.indexer.compiled.names.words import LEAST, has
from warmpath.indexer.engines.cache_groups import Way
from warmpath.indexer.engines.event import Tier

CERTAIN, DOUBTED = 0, 1
"""Columns of `Own.slots`."""
(
    OWNS,
    OWNED,
    ODD,
    ODD_KEYS,
    SIZE,
    AWAITED,
    ARE_WAITING,
    STORED,
    FASTEST,
    REMOVED,
    UNPLACED,
    UNKNOWN,
    OTHERS,
    RELEASED,
) = range(14)
"""Fields of `state`: whether the rank has a table of its own, and how many names are in it; how
many names are odd, and for how many keys they stand; tokens per block, 0 before that is known; for
how many names orphans wait, or waited, and whether any orphan waits; and counts of blocks: stored,
stored in the fastest tier, removed, announced without tokens and not known, removed and not known,
of groups left out, and removed from the fastest tier where the rank certainly held them."""

COUNTS = slice(STORED, RELEASED + 1)

NUMBER, WAY, GROUP_SIZE, FIRM, IS_WINDOW = range(5)
"""Columns of `Own.groups`."""
BY_NAME, LEFT_OUT = int(Way.BY_NAME), int(Way.LEFT_OUT)
SPOTS = len(Tier)
"""Rows of a group in `Own.slots`, one a tier."""


class Own(NamedTuple):
    """The arrays of one rank's names. Shapes: n places of the table; m, k and a places of the sets."""

    slots: NDArray[np.int64]
    """(4 * groups, 2): the slots of each group's tiers; -1 for none."""
    taken: NDArray[np.int64]
    """(s): the slots of `Own.slots` in a row, without -1."""
    groups: NDArray[np.int64]
    """(groups, 5): number, way, block size, whether that size is certain, whether it is a window."""
    names: NDArray[np.uint64]
    """(n): the rank's own table, if it has one: a name in each place."""
    numbers: NDArray[np.uint32]
    """(n): the block of each name; 0 for an empty place."""
    odd: NDArray[np.uint64]
    """(m): the set of odd names (`indexer.compiled.names.words`)."""
    odd_keys: NDArray[np.uint64]
    """(k): the set of the odd names' keys; apart, since a name may equal another block's key."""
    awaited: NDArray[np.uint64]
    """(a): the set of names for which orphans wait, or waited."""
    root: NDArray[np.uint64]
    """(1): the key before a prompt's first block, without adapter or salt."""
    state: NDArray[np.int64]


def new_own() -> Own:
    """Return the arrays of a rank that has no names and no cache groups yet."""
    return Own(
        slots=np.zeros((0, 2), np.int64),
        taken=np.zeros(0, np.int64),
        groups=np.zeros((0, 5), np.int64),
        names=np.zeros(1, np.uint64),
        numbers=np.zeros(1, np.uint32),
        odd=np.zeros(LEAST, np.uint64),
        odd_keys=np.zeros(LEAST, np.uint64),
        awaited=np.zeros(LEAST, np.uint64),
        root=np.zeros(1, np.uint64),
        state=np.zeros(14, np.int64),
    )


@inlined
def is_odd(own: Own, name: np.uint64) -> bool:
    """Whether a name is odd. 0 always is, since 0 marks an empty place in a table."""
    return name == 0 or (own.state[ODD] != 0 and has(own.odd, name))


@inlined
def is_odd_key(own: Own, key: np.uint64) -> bool:
    """Whether an odd name stands for a key."""
    return own.state[ODD_KEYS] != 0 and has(own.odd_keys, key)


@inlined
def is_awaited(own: Own, name: np.uint64) -> bool:
    """Whether orphans may wait for a name."""
    return own.state[AWAITED] != 0 and has(own.awaited, name)


@inlined
def place_of(own: Own, sets: Sets, held: int) -> bool:
    """Whether any slot of the rank is in a set."""
    for at in range(own.taken.size):
        if of.has(sets, held, own.taken[at]):
            return True
    return False


@inlined
def row_of(own: Own, group: int) -> int:
    """Return the row of a group in `groups`; -1 where it has none."""
    for row in range(own.groups.shape[0]):
        if own.groups[row, NUMBER] == group:
            return row
    return -1


@inlined
def find(blocks: Blocks, sets: Sets, own: Own, name: np.uint64) -> int:
    """Return the block that the rank holds by a plain name; 0 for none."""
    if own.state[OWNS]:
        at = home(name, own.names.size)
        while own.numbers[at] != 0:
            if own.names[at] == name:
                return int64(own.numbers[at])
            at = after(at, own.names.size)
        return 0
    at = seek(blocks.by_name, blocks.names, name, home(name, blocks.by_name.size))
    while at >= 0:
        number = number_at(blocks.by_name, at)
        is_held = place_of(own, sets, int64(blocks.halves[number, SET]))
        # A block that the rank holds by an odd name has this name from another engine.
        if is_held and not is_odd_key(own, blocks.records[number, 0]):
            return number
        # An engine, or keyspace, may have given the same name to another key.
        at = seek(blocks.by_name, blocks.names, name, after(at, blocks.by_name.size))
    return 0


@inlined
def own(mine: Own, name: np.uint64, number: int) -> None:
    """Add a name to the rank's own table, which must have room: the caller has made it."""
    at = home(name, mine.names.size)
    while mine.numbers[at] != 0:
        at = after(at, mine.names.size)
    mine.names[at] = name
    mine.numbers[at] = np.uint32(number)
    mine.state[OWNED] += 1


@inlined
def disown(mine: Own, name: np.uint64) -> None:
    """Delete a name that is in the rank's own table."""
    hole = home(name, mine.names.size)
    while mine.names[hole] != name or mine.numbers[hole] == 0:
        hole = after(hole, mine.names.size)
    at = hole
    while True:
        at = after(at, mine.names.size)
        if mine.numbers[at] == 0:
            break
        begin = home(mine.names[at], mine.names.size)
        if not stays(hole, begin, at):
            mine.names[hole] = mine.names[at]
            mine.numbers[hole] = mine.numbers[at]
            hole = at
    mine.numbers[hole] = 0
    mine.state[OWNED] -= 1


@inner
def _is_plain(blocks: Blocks, sets: Sets, mine: Own, number: int) -> bool:
    """Whether the rank holds a block by its shared name."""
    if blocks.quarters[number, DEPTH] == FREED or blocks.names[number, 0] == 0:
        return False
    is_held = place_of(mine, sets, int64(blocks.halves[number, SET]))
    return is_held and not is_odd_key(mine, blocks.records[number, 0])


@compiled
def gather(blocks: Blocks, sets: Sets, mine: Own, fresh: Own) -> None:
    """Fill an empty own table with the names of the blocks that the rank holds by shared names."""
    for number in range(1, blocks.state[TOP]):
        if _is_plain(blocks, sets, mine, number):
            own(fresh, blocks.names[number, 0], number)


@compiled
def copy(blocks: Blocks, sets: Sets, mine: Own, fresh: Own) -> None:
    """Fill an empty own table from another, without the names of blocks that the rank lost."""
    for at in range(mine.names.size):
        number = int64(mine.numbers[at])
        if number == 0 or blocks.quarters[number, DEPTH] == FREED:
            continue
        if place_of(mine, sets, int64(blocks.halves[number, SET])):
            own(fresh, mine.names[at], number)


@compiled
def plain(
    blocks: Blocks, sets: Sets, mine: Own, names: NDArray[np.uint64], numbers: NDArray[np.uint32]
) -> int:
    """Write every plain name to `names` and its block to `numbers`; return how many there are."""
    count = 0
    if mine.state[OWNS]:
        for at in range(mine.names.size):
            if mine.numbers[at]:
                names[count], numbers[count] = mine.names[at], mine.numbers[at]
                count += 1
        return count
    for number in range(1, blocks.state[TOP]):
        if _is_plain(blocks, sets, mine, number):
            names[count], numbers[count] = blocks.names[number, 0], number
            count += 1
    return count


@compiled
def put(
    blocks: Blocks,
    sets: Sets,
    mine: Own,
    names: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    parents: NDArray[np.uint64],
) -> bool:
    """Record `names` as plain names of the blocks with `keys`; skip blocks that the rank lost.

    Return False at the first block with another engine's name: the rank then needs a table of its own,
    and all names are to be recorded again.

    A parent's key is 0 where a prompt begins. There must be room for one more block per name, as a
    parent that is gone takes a number.
    """
    for at in range(names.size):
        number = table.find(blocks.by_key, blocks.records, keys[at])
        if number == 0 or not place_of(mine, sets, int64(blocks.halves[number, SET])):
            continue  # given up to make room, and perhaps stored again by others
        if not is_named(blocks, sets, mine, number, names[at]):
            return False
        if parents[at]:
            blocks.parents[number] = parent_of(blocks, parents[at])
    return True


@inlined
def is_named(blocks: Blocks, sets: Sets, mine: Own, number: int, word: np.uint64) -> bool:
    """Record a rank's plain name of a block; False where the block keeps another engine's name."""
    if mine.state[OWNS]:
        own(mine, word, number)
        return True
    known = blocks.names[number, 0]
    if known == word:
        return True
    if known != 0:
        held = int64(blocks.halves[number, SET])
        if of.is_live(sets, held) and not is_only(sets, held, mine):
            return False
        unname(blocks, number)
    name(blocks, number, word)
    return True


@inlined
def is_only(sets: Sets, held: int, mine: Own) -> bool:
    """Whether all slots of a set that are not dropped are the rank's."""
    for word in range(sets.live.size):
        others = sets.words[held, word] & sets.live[word]
        for at in range(mine.taken.size):
            slot = mine.taken[at]
            if slot >> 6 == word:
                others &= ~(np.uint64(1) << np.uint64(slot & 63))
        if others:
            return False
    return True


@compiled
def find_all(
    blocks: Blocks, sets: Sets, mine: Own, names: NDArray[np.uint64], numbers: NDArray[np.uint32]
) -> None:
    """Write to `numbers` the block that the rank holds by each plain name; 0 for none."""
    for at in range(names.size):
        numbers[at] = find(blocks, sets, mine, names[at])


@compiled
def held_all(
    blocks: Blocks, sets: Sets, mine: Own, keys: NDArray[np.uint64], numbers: NDArray[np.uint32]
) -> None:
    """Write to `numbers` the block of each key that the rank holds; 0 for none."""
    for at in range(keys.size):
        number = table.find(blocks.by_key, blocks.records, keys[at])
        held = number and place_of(mine, sets, int64(blocks.halves[number, SET]))
        numbers[at] = number if held else 0


@compiled
def take_out(
    blocks: Blocks, sets: Sets, mine: Own, name: np.uint64, number: int, there: NDArray[np.uint8]
) -> None:
    """Make a plain name odd; move its block from a place's slot in doubt to the certain one.

    Write to `there` for each row of `slots` 1 where the place holds it, 2 where it did in doubt, or 0.
    """
    if mine.state[OWNS]:
        disown(mine, name)
    for spot in range(mine.slots.shape[0]):
        held = int64(blocks.halves[number, SET])
        certain, doubted = mine.slots[spot, CERTAIN], mine.slots[spot, DOUBTED]
        there[spot] = 0
        if doubted >= 0 and of.has(sets, held, doubted):
            hold(blocks, sets, number, certain)
            release(blocks, sets, number, doubted, True)
            there[spot] = 2
        elif certain >= 0 and of.has(sets, held, certain):
            there[spot] = 1
