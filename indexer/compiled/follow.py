"""Scanned batches applied to the index, as far as everything in them is plain.

What `indexer.resolver` does for one rank, without Python objects. At the first thing that is not plain
(`indexer.compiled.names`) it stops and says where, and the pure resolver takes that event.
"""

import numpy as np
from numpy.typing import NDArray

from indexer.compiled import sets as of
from indexer.compiled import table
from indexer.compiled.blocks import DEPTH, FREED, SET, UNUSED, Blocks, create, hold, release, sought
from indexer.compiled.dialect import STORED as IS_STORE
from indexer.compiled.jit import compiled, inlined
from indexer.compiled.names import (
    CERTAIN,
    DOUBTED,
    FASTEST,
    FIRM,
    ODD,
    OWNS,
    REMOVED,
    SIZE,
    STORED,
    Own,
    disown,
    find,
    is_named,
    is_odd,
    place_of,
)
from indexer.compiled.scan import HAS_PARENT, KIND, NAMES, NAMES_AT, TIER, TOKENS_AT, Scanned
from indexer.compiled.scan import SIZE as EVENT_SIZE
from indexer.compiled.sets import Sets
from indexer.compiled.xxh64 import block_key

DONE, PAUSED, STRANGE, OTHER_NAMES = range(4)
"""Why `follow` returned: everything is applied; as many blocks as were allowed; something is not plain;
or the rank gives other names than the index has and needs a table of its own."""


@inlined
def _certain(blocks: Blocks, sets: Sets, number: int, fresh: int, doubted: int) -> None:
    """Let the slot of what is certain hold a block that was in doubt."""
    hold(blocks, sets, number, fresh)
    release(blocks, sets, number, doubted, True)


@compiled
def prove(blocks: Blocks, sets: Sets, mine: Own, number: int, allowed: int) -> tuple[int, int]:
    """Make a block and those before it certain, as far as they are in doubt, at most `allowed`.

    Return where it ended and what is left of `allowed`; where nothing is, it may have to go on.
    """
    fresh, doubted = mine.slots[0, CERTAIN], mine.slots[0, DOUBTED]
    while number and allowed and doubted >= 0:
        if not of.has(sets, np.int64(blocks.halves[number, SET]), doubted):
            break
        if is_odd(mine, blocks.records[number, 0]):
            break
        _certain(blocks, sets, number, fresh, doubted)
        number = np.int64(blocks.parents[number])
        allowed -= 1
    return number, allowed


@inlined
def hold_plain(
    blocks: Blocks,
    sets: Sets,
    mine: Own,
    word: np.uint64,
    key: np.uint64,
    tier: int,
    above: int,
    now: int,
) -> int:
    """Let the rank hold a block by a plain name; return its number, or -STRANGE or -OTHER_NAMES.

    `above` is the number of its parent, 0 where it is not known.
    """
    fresh, doubted = mine.slots[tier, CERTAIN], mine.slots[tier, DOUBTED]
    if word == 0 or is_odd(mine, word) or is_odd(mine, key):
        return -STRANGE
    number = find(blocks, sets, mine, word)
    if number:
        held = np.int64(blocks.halves[number, SET])
        if of.has(sets, held, fresh):
            return -STRANGE
        if doubted >= 0 and of.has(sets, held, doubted):
            _certain(blocks, sets, number, fresh, doubted)
        else:
            hold(blocks, sets, number, fresh)
        return number
    number, at = sought(blocks, key)
    if number:
        if place_of(mine, sets, np.int64(blocks.halves[number, SET])):
            return -STRANGE
        if not is_named(blocks, sets, mine, number, word):
            return -OTHER_NAMES
        if above:
            blocks.parents[number] = above
    else:
        number = create(blocks, key, above, now, at)
        blocks.parents[number] = above
        is_named(blocks, sets, mine, number, word)
    hold(blocks, sets, number, fresh)
    return number


@inlined
def release_plain(blocks: Blocks, sets: Sets, mine: Own, word: np.uint64, tier: int) -> int:
    """Let a tier hold a block no longer, by its plain name; return 0, or -STRANGE."""
    if is_odd(mine, word):
        return -STRANGE
    number = find(blocks, sets, mine, word)
    if number == 0:
        return -STRANGE
    held = np.int64(blocks.halves[number, SET])
    slot = mine.slots[tier, CERTAIN]
    if slot < 0 or not of.has(sets, held, slot):
        slot = mine.slots[tier, DOUBTED]
        if slot < 0 or not of.has(sets, held, slot):
            return -STRANGE
    release(blocks, sets, number, slot, True)
    if mine.state[OWNS]:
        is_gone = blocks.quarters[number, DEPTH] == FREED
        if is_gone or not place_of(mine, sets, np.int64(blocks.halves[number, SET])):
            disown(mine, word)
    return 0


@compiled
def _touch(blocks: Blocks, names: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
    """Read where names and keys will be looked for.

    The misses of the cache are then waited for at once, and not one after the other.
    """
    seen = 0
    for word in names:
        seen |= table.first_number(blocks.by_name, word)
    for word in keys:
        seen |= table.first_number(blocks.by_key, word)
    if seen == 0:
        blocks.state[UNUSED] = 0  # lest the compiler finds that nothing comes of it


@compiled
def follow(
    blocks: Blocks,
    sets: Sets,
    mine: Own,
    scanned: Scanned,
    position: NDArray[np.int64],
    last: int,
    allowed: int,
    carried: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    now: int,
) -> int:
    """Apply events up to `last` (exclusive), at most `allowed` blocks; say why it returned.

    `position` is the event and the block in it to go on from, the block before, and the block to go on
    proving from (-1: not begun); `carried` the key before. `keys` has room for `allowed` keys.
    """
    state = mine.state
    while position[0] < last:
        event = position[0]
        row = scanned.events[event]
        tier, names, first = row[TIER], row[NAMES], row[NAMES_AT]
        ready = min(names, position[1] + allowed)
        if row[KIND] != IS_STORE:
            _touch(blocks, scanned.names[first + position[1] : first + ready], keys[:0])
            while position[1] < names:
                if allowed == 0:
                    return PAUSED
                if release_plain(blocks, sets, mine, scanned.names[first + position[1]], tier):
                    return STRANGE
                state[REMOVED] += 1
                allowed -= 1
                position[1] += 1
            position[0], position[1] = event + 1, 0
            continue
        size = row[EVENT_SIZE]
        if size != state[SIZE] or mine.slots[tier, CERTAIN] < 0:
            return STRANGE
        if names > 1 and not state[FIRM]:
            return STRANGE
        if position[1] == 0:
            position[2] = 0
            carried[0] = mine.root[0]
            if row[HAS_PARENT]:
                word = scanned.parents[event]
                if is_odd(mine, word):
                    return STRANGE
                above = find(blocks, sets, mine, word)
                if above == 0:
                    return STRANGE
                if state[ODD] and mine.slots[0, DOUBTED] >= 0:
                    return STRANGE
                position[2] = above
                carried[0] = blocks.records[above, 0]
        begin = position[1]
        key = carried[0]
        for at in range(begin, ready):
            key = block_key(scanned.tokens, row[TOKENS_AT] + at * size, size, key)
            keys[at - begin] = key
        _touch(blocks, scanned.names[first + begin : first + ready], keys[: ready - begin])
        while position[1] < names:
            if allowed == 0:
                return PAUSED
            at = position[1]
            key = keys[at - begin]
            number = hold_plain(
                blocks, sets, mine, scanned.names[first + at], key, tier, position[2], now
            )
            if number < 0:
                return -number
            carried[0] = key
            position[2] = number if blocks.records[number, 0] == key else 0
            state[STORED] += 1
            if tier == 0:
                state[FASTEST] += 1
            allowed -= 1
            position[1] = at + 1
        if tier == 0 and row[HAS_PARENT] and mine.slots[0, DOUBTED] >= 0:
            if position[3] < 0:
                position[3] = find(blocks, sets, mine, scanned.parents[event])
            position[3], allowed = prove(blocks, sets, mine, position[3], allowed)
            if allowed == 0:
                return PAUSED
        position[0], position[1], position[3] = event + 1, 0, -1
    return DONE


@compiled
def doubt_all(
    blocks: Blocks, sets: Sets, certain: int, doubted: int, start: int, stop: int
) -> None:
    """Let one slot hold what another one holds among some records."""
    for number in range(start, stop):
        held = np.int64(blocks.halves[number, SET])
        if blocks.quarters[number, DEPTH] != FREED and of.has(sets, held, certain):
            hold(blocks, sets, number, doubted)
            release(blocks, sets, number, certain, True)
