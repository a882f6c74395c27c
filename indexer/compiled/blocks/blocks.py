"""Blocks by key, and the slots that hold each.

A block is a record of 16 bytes: its key, the number of its set of slots, when it was last matched, and
its depth in its chain. A router that follows engines directly also keeps the name that the first engine
gave the block, and its parent's number; those arrays take memory only once they are written to.

A block was last matched no later than its parent, and is one deeper. So giving up blocks in order
of their last match, the deepest first, never makes a hole in a chain.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks import sets as of
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.blocks.table import delete, find, home, insert, number_at, put, seek
from warmpath.indexer.compiled.jit import compiled, inlined, int64
from warmpath.indexer.compiled.outside import Zeros

TOP, FREE, LIVE, NAMED, RESTING, RESTED, UNUSED = range(7)
"""Fields of `state`: the lowest number never given out; the first free number; how many blocks there
are, and how many with a name; the first resting number, and how many rest; and a field without a
meaning.

A number *rests* after its block was freed: it is not given out again, since another block may still name
it as its parent (`wake`)."""

SET = 2
"""Column of `halves`: a block's set; in a freed record, the number of the next free or resting one."""
MATCHED, DEPTH = 6, 7
"""Columns of `quarters`: when a block was last matched, and its depth in its chain."""

DEEPEST = 0xFFFE
FREED = 0xFFFF
"""The depth of a record that is not a block now."""


class Blocks(NamedTuple):
    """Blocks. Shapes: n records, k and m places of the tables, s slots."""

    records: NDArray[np.uint64]
    """(n, 2): the key; the second column is memory that `halves` and `quarters` divide."""
    halves: NDArray[np.uint32]
    """(n, 4): the memory of `records`; the set in column `SET`."""
    quarters: NDArray[np.uint16]
    """(n, 8): the memory of `records`; time of the last match and depth."""
    names: NDArray[np.uint64]
    """(n, 1): the first engine's name of a block that is in `by_name`."""
    parents: NDArray[np.uint32]
    """(n): the parent's number (`present`); 0 where there is none or it is not known."""
    by_key: NDArray[np.uint32]
    by_name: NDArray[np.uint32]
    counts: NDArray[np.int64]
    """(s): how many blocks each slot holds."""
    state: NDArray[np.int64]


def new_blocks(capacity: int, slots: int, places: int, zeros: Zeros) -> Blocks:
    """Return empty arrays with room for `capacity` blocks; they take memory as blocks come.

    `places` is the size of the table by key.
    """
    records = zeros((capacity + 1, 2), np.uint64)
    state = zeros(7, np.int64)
    state[TOP] = 1
    return Blocks(
        records=records,
        halves=records.view(np.uint32),
        quarters=records.view(np.uint16),
        names=zeros((capacity + 1, 1), np.uint64),
        parents=zeros(capacity + 1, np.uint32),
        by_key=zeros(places, np.uint32),
        by_name=np.zeros(16, np.uint32),
        counts=zeros(slots, np.int64),
        state=state,
    )


@inlined
def sought(blocks: Blocks, key: np.uint64) -> tuple[int, int]:
    """Return the number of a key's block, 0 for none, and the place where the search ended."""
    at = seek(blocks.by_key, blocks.records, key, home(key, blocks.by_key.size))
    if at >= 0:
        return number_at(blocks.by_key, at), at
    return 0, -1 - at


@inlined
def _next_number(blocks: Blocks) -> int:
    """Return the number of a new block: one that was freed, or else the next unused one."""
    state = blocks.state
    number: int = state[FREE]
    if number:
        state[FREE] = int64(blocks.halves[number, SET])
    else:
        number = state[TOP]
        state[TOP] += 1
    return number


@inlined
def create(blocks: Blocks, key: np.uint64, parent: int, now: int, at: int) -> int:
    """Make a block that no slot holds yet; return its number.

    `parent` is 0 for the first block of a chain, and negative where the parent is gone: no prompt can
    reuse the block then, and it is given up first. `at` is the place where the search for `key` ended.
    """
    number = _next_number(blocks)
    blocks.state[LIVE] += 1
    blocks.records[number, 0] = key
    blocks.halves[number, SET] = 0
    if parent > 0:
        blocks.quarters[number, MATCHED] = blocks.quarters[parent, MATCHED]
        depth = blocks.quarters[parent, DEPTH]
        blocks.quarters[number, DEPTH] = depth + 1 if depth < DEEPEST else DEEPEST
    else:
        blocks.quarters[number, MATCHED] = now
        blocks.quarters[number, DEPTH] = 0 if parent == 0 else DEEPEST
    put(blocks.by_key, at, key, number)
    return number


@inlined
def free(blocks: Blocks, number: int, rests: bool) -> None:
    """Free a block that no slot holds; with `rests` its number is not given out yet (see `TOP`)."""
    state = blocks.state
    unname(blocks, number)
    delete(blocks.by_key, blocks.records, number)
    state[LIVE] -= 1
    if rests:
        _let_rest(blocks, number)
    else:
        blocks.quarters[number, DEPTH] = FREED
        blocks.halves[number, SET] = np.uint32(state[FREE])
        state[FREE] = number


@inlined
def _let_rest(blocks: Blocks, number: int) -> None:
    """Let a block's number rest, since other blocks may name it as their parent."""
    state = blocks.state
    blocks.quarters[number, DEPTH] = FREED
    blocks.halves[number, SET] = np.uint32(state[RESTING])
    blocks.parents[number] = 0  # the next block with this number has another parent
    state[RESTING] = number
    state[RESTED] += 1


@inlined
def parent_of(blocks: Blocks, key: np.uint64) -> int:
    """Return a parent's number, given its key: 0 for key 0, a resting number where it is gone."""
    if key == 0:
        return 0
    number = find(blocks.by_key, blocks.records, key)
    if number == 0:
        number = _next_number(blocks)
        blocks.records[number, 0] = key
        _let_rest(blocks, number)
    return number


@inlined
def present(blocks: Blocks, number: int) -> int:
    """Return the present number of the block that once had this number; 0 if it is gone.

    A block gets another number if it was freed and stored again. That happens to parents, which may be
    freed before their children.
    """
    if number and blocks.quarters[number, DEPTH] == FREED:
        return find(blocks.by_key, blocks.records, blocks.records[number, 0])
    return number


@inlined
def behind(blocks: Blocks, key: np.uint64) -> int:
    """Return `create`'s `parent` for a block whose parent has this key; key 0 begins a chain."""
    if key == 0:
        return 0
    number = find(blocks.by_key, blocks.records, key)
    return number or -1


@inlined
def unname(blocks: Blocks, number: int) -> None:
    """Remove a block's name, where it has one."""
    if blocks.state[NAMED] and blocks.names[number, 0]:
        delete(blocks.by_name, blocks.names, number)
        blocks.names[number, 0] = 0
        blocks.state[NAMED] -= 1


@inlined
def name(blocks: Blocks, number: int, word: np.uint64) -> None:
    """Give a nameless block a name other than 0."""
    blocks.names[number, 0] = word
    insert(blocks.by_name, word, number)
    blocks.state[NAMED] += 1


@inlined
def hold(blocks: Blocks, sets: Sets, number: int, slot: int) -> bool:
    """Add a slot to a block's set; False where the slot is in it already."""
    before = int64(blocks.halves[number, SET])
    if of.has(sets, before, slot):
        return False
    after = of.flipped(sets, before, slot)
    blocks.halves[number, SET] = np.uint32(after)
    of.move(sets, before, after)
    blocks.counts[slot] += 1
    return True


@inlined
def release(blocks: Blocks, sets: Sets, number: int, slot: int, rests: bool) -> bool:
    """Remove a slot from a block's set; False where it is not there. The last slot frees the block."""
    before = int64(blocks.halves[number, SET])
    if not of.has(sets, before, slot):
        return False
    after = of.flipped(sets, before, slot)
    blocks.halves[number, SET] = np.uint32(after)
    of.move(sets, before, after)
    blocks.counts[slot] -= 1
    if not after:
        free(blocks, number, rests)
    return True


@compiled
def add(
    blocks: Blocks,
    sets: Sets,
    slot: int,
    keys: NDArray[np.uint64],
    starts: NDArray[np.int64],
    above: NDArray[np.uint64],
    start: int,
    stop: int,
    previous: int,
    now: int,
) -> int:
    """Add a slot to the blocks of `keys[start:stop]`, a chain. Return the number of the last block.

    `previous` is the number of the block before the first. At each of the positions `starts` another
    chain begins, behind the key in `above`.
    """
    link = 0
    while link < starts.size and starts[link] < start:
        link += 1
    for at in range(start, stop):
        key = keys[at]
        if link < starts.size and starts[link] == at:
            previous = behind(blocks, above[link])
            link += 1
        number, place = sought(blocks, key)
        if not number:
            number = create(blocks, key, previous, now, place)
        hold(blocks, sets, number, slot)
        previous = number
    return previous


@compiled
def remove(
    blocks: Blocks,
    sets: Sets,
    slot: int,
    keys: NDArray[np.uint64],
    start: int,
    stop: int,
    rests: bool,
) -> None:
    """Remove a slot from the blocks of `keys[start:stop]`."""
    for at in range(start, stop):
        number = find(blocks.by_key, blocks.records, keys[at])
        if number:
            release(blocks, sets, number, slot, rests)


@compiled
def holds(
    blocks: Blocks, sets: Sets, slot: int, keys: NDArray[np.uint64], there: NDArray[np.uint8]
) -> None:
    """Write 1 for each key that a slot holds, and 0 for the others."""
    for at in range(keys.size):
        number = find(blocks.by_key, blocks.records, keys[at])
        there[at] = number and of.has(sets, int64(blocks.halves[number, SET]), slot)


@compiled
def sweep(
    blocks: Blocks, sets: Sets, gone: NDArray[np.uint64], start: int, stop: int, rests: bool
) -> None:
    """Remove slots, the bits in `gone`, from the blocks with numbers `start` to `stop` (exclusive)."""
    for number in range(start, stop):
        if blocks.quarters[number, DEPTH] == FREED:
            continue
        before = int64(blocks.halves[number, SET])
        touched = False
        for word in range(gone.size):
            kept = sets.words[before, word] & ~gone[word]
            touched = touched or kept != sets.words[before, word]
            sets.scratch[word] = kept
        if not touched:
            continue
        after = of.intern(sets)
        blocks.halves[number, SET] = np.uint32(after)
        of.move(sets, before, after)
        if not after:
            free(blocks, number, rests)


@compiled
def renumber(blocks: Blocks, numbers: NDArray[np.uint32]) -> None:
    """Write the new number of each block's set: set n is now set `numbers[n]`."""
    for number in range(1, blocks.state[TOP]):
        if blocks.quarters[number, DEPTH] != FREED:
            blocks.halves[number, SET] = numbers[blocks.halves[number, SET]]


@compiled
def wake(blocks: Blocks) -> None:
    """Make every resting number free, to be given out again.

    Before that, each block whose parent has a resting number gets the parent's present number, or 0
    where the parent is gone. So no block names a resting number any more.
    """
    state = blocks.state
    for number in range(1, state[TOP]):
        parent = int64(blocks.parents[number])
        if parent and blocks.quarters[parent, DEPTH] == FREED:
            blocks.parents[number] = present(blocks, parent)
    while state[RESTING]:
        number = state[RESTING]
        state[RESTING] = int64(blocks.halves[number, SET])
        blocks.halves[number, SET] = np.uint32(state[FREE])
        state[FREE] = number
    state[RESTED] = 0
