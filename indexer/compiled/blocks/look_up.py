"""Looks up which slots hold a prompt's blocks, as stretches of each slot.

A look-up of tokens makes a chunk of keys, then reads the table where their searches begin, and only
then searches: so the processor waits for many cache misses at once. The arrays are passed one by
one because a call with a tuple of them takes 4 microseconds longer.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.blocks import MATCHED, SET, Blocks
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.blocks.table import find_within, first_number
from warmpath.indexer.compiled.jit import allocating, inner, int64
from warmpath.indexer.compiled.keys import block_key

View = tuple[
    NDArray[np.uint32],
    NDArray[np.uint64],
    NDArray[np.uint32],
    NDArray[np.uint16],
    NDArray[np.uint64],
    NDArray[np.uint64],
]
"""The arrays that a look-up reads, in the order in which the functions take them."""


def view_of(blocks: Blocks, sets: Sets) -> View:
    """Return the arrays that a look-up reads."""
    return (blocks.by_key, blocks.records, blocks.halves, blocks.quarters, sets.words, sets.live)


CHUNK = 64
"""Blocks whose keys are made before they are looked up."""


@inner
def _walk(
    view: View,
    keys: NDArray[np.uint64],
    count: int,
    depth: int,
    now: int,
    current: NDArray[np.uint64],
    opened: NDArray[np.int64],
    found: NDArray[np.int64],
    stretches: int,
    before: int,
) -> tuple[int, int]:
    """Look up `count` keys at `depth`; return how many stretches have ended, and the last key's set."""
    by_key, records, halves, quarters, words, live = view
    for at in range(count):
        number = find_within(by_key, records, keys[at])
        held = 0
        if number:
            held = int64(halves[number, SET])
            if held >= words.shape[0]:
                held = 0  # read while another process writes, as the version will show
            if quarters[number, MATCHED] != now:
                quarters[number, MATCHED] = now
        if held != before:
            stretches = _turn(words, live, held, depth + at, current, opened, found, stretches)
            before = held
    return stretches, before


@inner
def _turn(
    words: NDArray[np.uint64],
    live: NDArray[np.uint64],
    held: int,
    depth: int,
    current: NDArray[np.uint64],
    opened: NDArray[np.int64],
    found: NDArray[np.int64],
    stretches: int,
) -> int:
    """Put the slots of set `held` into `current`; return how many stretches have ended."""
    for word in range(current.size):
        after = words[held, word] & live[word]
        changed = after ^ current[word]
        current[word] = after
        bit = 0
        while changed:
            if changed & np.uint64(1):
                slot = word * 64 + bit
                if (after >> np.uint64(bit)) & np.uint64(1):
                    opened[slot] = depth
                else:
                    if stretches < found.shape[0]:
                        found[stretches, 0] = slot
                        found[stretches, 1] = opened[slot]
                        found[stretches, 2] = depth
                    stretches += 1
                bit += 1
                changed >>= np.uint64(1)
            elif changed & np.uint64(0xFF) == 0:
                bit += 8
                changed >>= np.uint64(8)
            else:
                bit += 1
                changed >>= np.uint64(1)
    return stretches


@inner
def _is_empty(words: NDArray[np.uint64]) -> bool:
    for word in words:
        if word:
            return False
    return True


@allocating
def of_keys(
    by_key: NDArray[np.uint32],
    records: NDArray[np.uint64],
    halves: NDArray[np.uint32],
    quarters: NDArray[np.uint16],
    words: NDArray[np.uint64],
    live: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    leading: bool,
    now: int,
    found: NDArray[np.int64],
) -> int:
    """Write the stretches of `keys` as rows: slot, first block, and the position after the last block.

    Return how many there are, which may be more than `found` has rows. With `leading`, the look-up
    stops after the first chunk whose last block no slot holds.
    """
    view = (by_key, records, halves, quarters, words, live)
    current = np.zeros(live.size, np.uint64)
    opened = np.zeros(live.size * 64, np.int64)
    stretches, before = 0, 0
    depth = 0
    while depth < keys.size:
        chunk = min(CHUNK, keys.size - depth)
        stretches, before = _walk(
            view, keys[depth:], chunk, depth, now, current, opened, found, stretches, before
        )
        depth += chunk
        if leading and _is_empty(current):
            break
    return _turn(words, live, 0, depth, current, opened, found, stretches)


@allocating
def of_tokens(
    by_key: NDArray[np.uint32],
    records: NDArray[np.uint64],
    halves: NDArray[np.uint32],
    quarters: NDArray[np.uint16],
    words: NDArray[np.uint64],
    live: NDArray[np.uint64],
    root: np.uint64,
    tokens: NDArray[np.uint32],
    size: int,
    count: int,
    leading: bool,
    now: int,
    found: NDArray[np.int64],
) -> int:
    """Write stretches as `of_keys` does, of the first `count` blocks, chained to `root`."""
    view = (by_key, records, halves, quarters, words, live)
    current = np.zeros(live.size, np.uint64)
    opened = np.zeros(live.size * 64, np.int64)
    keys = np.empty(CHUNK + 1, np.uint64)
    stretches, before = 0, 0
    key = root
    depth = 0
    while depth < count:
        chunk = min(CHUNK, count - depth)
        seen = 0
        for at in range(chunk):
            key = block_key(tokens, (depth + at) * size, size, key)
            keys[at] = key
        for at in range(chunk):
            seen |= first_number(by_key, keys[at])
        keys[CHUNK] = seen  # else the compiler would drop the reads, whose result nobody needs
        stretches, before = _walk(
            view, keys, chunk, depth, now, current, opened, found, stretches, before
        )
        depth += chunk
        if leading and _is_empty(current):
            break
    return _turn(words, live, 0, depth, current, opened, found, stretches)
