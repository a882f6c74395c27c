"""Applies scanned batches to the index, as far as everything in them is plain.

`follow` does the work of `indexer.resolve.resolver` without Python objects. At the first name that is
not plain (`indexer.compiled.names.names`) it stops and returns the position, and the resolver takes
over.

Batches that arrive together are applied in one call, up to the first after which the rank's trust may
change (`may_change_trust`). The caller then decides on the trust before the next batch is applied.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks import table
from warmpath.indexer.compiled.blocks.blocks import UNUSED, Blocks
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.jit import compiled, inlined, inner
from warmpath.indexer.compiled.keys import block_key, lookahead_key
from warmpath.indexer.compiled.names import roots as root_of
from warmpath.indexer.compiled.names.hold import (
    STRANGE,
    hold_known,
    hold_plain,
    prove,
    release_plain,
)
from warmpath.indexer.compiled.names.names import (
    BY_NAME,
    CERTAIN,
    DOUBTED,
    FASTEST,
    FIRM,
    GROUP_SIZE,
    IS_WINDOW,
    LEFT_OUT,
    ODD,
    OTHERS,
    REMOVED,
    SIZE,
    SPOTS,
    STORED,
    UNPLACED,
    WAY,
    Own,
    find,
    is_odd,
    row_of,
)
from warmpath.indexer.compiled.names.roots import RootTable
from warmpath.indexer.compiled.scan.dialect import STORED as IS_STORE
from warmpath.indexer.compiled.scan.scanned import (
    ANOTHER,
    GROUP,
    HAS_PAIRS,
    HAS_PARENT,
    KIND,
    LORA,
    LORA_AT,
    NAMES,
    NAMES_AT,
    SALT,
    SALT_AT,
    TIER,
    TOKENS,
    TOKENS_AT,
    Scanned,
)
from warmpath.indexer.compiled.scan.scanned import SIZE as EVENT_SIZE

NEVER = 1 << 62
"""A bound that no count reaches."""


class Bounds(NamedTuple):
    """Which numbers of blocks in which slots may change the trust (`may_change_trust`)."""

    pool: NDArray[np.int64]
    """(p): slots of the places that share the cache's blocks."""
    most: int
    """The most blocks that the places of `pool` can hold together."""
    slower: NDArray[np.int64]
    """(s): slots of the slower tiers' places."""
    enough: int
    """How many more blocks stored in the fastest tier settle all doubt, where slower tiers hold none."""


@inlined
def may_change_trust(blocks: Blocks, mine: Own, bounds: Bounds) -> bool:
    """Whether the rank's trust may change after the batch that was applied last."""
    held = 0
    for at in range(bounds.pool.size):
        held += blocks.counts[bounds.pool[at]]
    if held > bounds.most:
        return True
    if mine.state[FASTEST] < bounds.enough:
        return False
    for at in range(bounds.slower.size):
        if blocks.counts[bounds.slower[at]]:
            return False
    return True


DONE, PAUSED, TELLING = 0, 3, 4
"""Why `follow` returned, beside `STRANGE` and `OTHER_NAMES`: everything is applied; as many blocks are
applied as were allowed; or the rank's trust may change after the last batch."""


@inner
def _touch(blocks: Blocks, names: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
    """Read the places where the searches for names and keys will begin.

    The processor then waits for these cache misses together, and not one after the other.
    """
    seen = 0
    for word in names:
        seen |= table.first_number(blocks.by_name, word)
    for word in keys:
        seen |= table.first_number(blocks.by_key, word)
    if seen == 0:
        blocks.state[UNUSED] = (
            0  # else the compiler would drop the reads, whose result nobody needs
        )


@inlined
def _changes_layout(mine: Own, scanned: Scanned, first: int, last: int) -> bool:
    """Whether some events would change the known layout (`indexer.resolve.groups.Groups.learn`)."""
    for event in range(first, last):
        row = scanned.events[event]
        if row[KIND] != IS_STORE:
            continue
        at = row_of(mine, row[GROUP])
        if at < 0:
            return True
        if row[TIER] == 0 and row[EVENT_SIZE] >= 1:
            if row[EVENT_SIZE] != mine.groups[at, GROUP_SIZE]:
                return True
            if row[NAMES] > 1 and not mine.groups[at, FIRM]:
                return True
    return False


@inlined
def _begin_chain(
    blocks: Blocks, sets: Sets, mine: Own, roots: RootTable, scanned: Scanned, event: int
) -> tuple[int, np.uint64]:
    """Return the number of the block before a store (-1: the resolver must find it), and its key."""
    row = scanned.events[event]
    if row[HAS_PARENT]:
        word = scanned.parents[event]
        above = 0 if is_odd(mine, word) else find(blocks, sets, mine, word)
        return (above, blocks.records[above, 0]) if above else (-1, np.uint64(0))
    if row[LORA] == 0 and row[SALT] == 0:
        return 0, mine.root[0]
    if row[LORA] == ANOTHER:
        return -1, np.uint64(0)
    place = root_of.place_of(roots, scanned.data, row[LORA_AT], row[LORA], row[SALT_AT], row[SALT])
    return (0, roots.keys[place]) if place >= 0 else (-1, np.uint64(0))


@compiled
def follow(
    blocks: Blocks,
    sets: Sets,
    mine: Own,
    roots: RootTable,
    scanned: Scanned,
    ends: NDArray[np.int64],
    position: NDArray[np.int64],
    allowed: int,
    carried: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    now: int,
    bounds: Bounds,
) -> int:
    """Apply batches, at most `allowed` of their blocks; return why it stopped (`DONE`, `STRANGE`, …).

    `ends` has the position after each batch's last event. The function also stops after a batch
    that may change the trust (`may_change_trust`).

    `position` is where the next call goes on: the event; the block in it; the number of the block
    before; the number of the block to prove next (-1: not begun; 0: done, before the event's first block
    is held); and the batch. `carried` is the key of the block before. `keys` has room for `allowed`
    keys.
    """
    state = mine.state
    while position[4] < ends.size:
        batch = position[4]
        begins = ends[batch - 1] if batch else 0
        is_new = position[0] == begins and position[1] == 0 and position[3] < 0
        if is_new and _changes_layout(mine, scanned, begins, ends[batch]):
            return STRANGE
        while position[0] < ends[batch]:
            event = position[0]
            row = scanned.events[event]
            tier, names, first = row[TIER], row[NAMES], row[NAMES_AT]
            group = row_of(mine, row[GROUP])
            if group < 0:
                return STRANGE
            spot = group * SPOTS + tier
            ready = min(names, position[1] + allowed)
            if row[KIND] != IS_STORE:
                _touch(blocks, scanned.names[first + position[1] : first + ready], keys[:0])
                while position[1] < names:
                    if allowed == 0:
                        return PAUSED
                    if release_plain(blocks, sets, mine, scanned.names[first + position[1]], spot):
                        return STRANGE
                    state[REMOVED] += 1
                    allowed -= 1
                    position[1] += 1
                position[0], position[1] = event + 1, 0
                continue
            way = mine.groups[group, WAY]
            if way == LEFT_OUT:
                state[OTHERS] += names
                position[0] = event + 1
                continue
            if mine.slots[spot, CERTAIN] < 0:
                return STRANGE
            if way == BY_NAME or row[TOKENS] < 0:
                _touch(blocks, scanned.names[first + position[1] : first + ready], keys[:0])
                while position[1] < names:
                    if allowed == 0:
                        return PAUSED
                    word = scanned.names[first + position[1]]
                    number = hold_known(blocks, sets, mine, word, spot)
                    if number < 0:
                        return STRANGE
                    if number:
                        state[STORED] += 1
                        state[FASTEST] += tier == 0
                    elif not mine.groups[group, IS_WINDOW]:
                        state[UNPLACED] += 1
                    allowed -= 1
                    position[1] += 1
                position[0], position[1] = event + 1, 0
                continue
            size = row[EVENT_SIZE]
            if size != state[SIZE]:
                return STRANGE
            if position[1] == 0:
                position[2], carried[0] = _begin_chain(blocks, sets, mine, roots, scanned, event)
                if position[2] < 0:
                    return STRANGE
                # As in `Resolver`, a block behind a window proves nothing of the window.
                proves = tier == 0 and not mine.groups[group, IS_WINDOW]
                if row[HAS_PARENT] and proves and mine.slots[spot, DOUBTED] >= 0:
                    if state[ODD]:
                        return STRANGE
                    if position[3] < 0:
                        position[3] = position[2]
                    position[3], allowed = prove(blocks, sets, mine, spot, position[3], allowed)
                    if allowed == 0:
                        return PAUSED
                    position[3] = 0
                ready = min(names, allowed)
            begin = position[1]
            key = carried[0]
            for at in range(begin, ready):
                start = row[TOKENS_AT] + at * size
                if row[HAS_PAIRS]:
                    key = lookahead_key(scanned.seconds[start + size - 1], key)
                key = block_key(scanned.tokens, start, size, key)
                keys[at - begin] = key
            _touch(blocks, scanned.names[first + begin : first + ready], keys[: ready - begin])
            while position[1] < names:
                if allowed == 0:
                    return PAUSED
                at = position[1]
                key = keys[at - begin]
                number = hold_plain(
                    blocks, sets, mine, scanned.names[first + at], key, spot, position[2], now
                )
                if number < 0:
                    return -number
                carried[0] = key
                position[2] = number
                state[STORED] += 1
                state[FASTEST] += tier == 0
                allowed -= 1
                position[1] = at + 1
            position[0], position[1], position[3] = event + 1, 0, -1
        position[4] = batch + 1
        if may_change_trust(blocks, mine, bounds):
            return TELLING
    return DONE
