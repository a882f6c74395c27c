"""Gives blocks up where there is no more room: the least recently matched first, deepest first."""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks import sets as of
from warmpath.indexer.compiled.blocks.blocks import DEPTH, FREED, MATCHED, SET, TOP, Blocks, free
from warmpath.indexer.compiled.blocks.sets import Sets
from warmpath.indexer.compiled.jit import allocating, compiled, int64


@allocating
def choose(blocks: Blocks, wanted: int) -> tuple[int, int]:
    """Return the time and the depth at which to give up about `wanted` blocks.

    Those are the blocks last matched before that time, or at that time and at that depth or deeper.
    """
    times = np.zeros(1 << 16, np.int64)
    top = blocks.state[TOP]
    for number in range(1, top):
        if blocks.quarters[number, DEPTH] != FREED:
            times[blocks.quarters[number, MATCHED]] += 1
    time, sooner = 0, 0
    while time < times.size - 1 and sooner + times[time] < wanted:
        sooner += times[time]
        time += 1
    depths = np.zeros(1 << 16, np.int64)
    for number in range(1, top):
        depth = blocks.quarters[number, DEPTH]
        if depth != FREED and blocks.quarters[number, MATCHED] == time:
            depths[depth] += 1
    depth = FREED
    while depth > 0 and sooner < wanted:
        depth -= 1
        sooner += depths[depth]
    return time, depth


@compiled
def give_up(
    blocks: Blocks,
    sets: Sets,
    time: int,
    depth: int,
    start: int,
    stop: int,
    rests: bool,
    losers: NDArray[np.uint64],
) -> int:
    """Free the chosen blocks among numbers `start` to `stop` (exclusive); return how many.

    The slots that held any are added to `losers`, a bit each.
    """
    given = 0
    for number in range(start, stop):
        matched, deep = blocks.quarters[number, MATCHED], blocks.quarters[number, DEPTH]
        if deep == FREED or matched > time or (matched == time and deep < depth):
            continue
        before = int64(blocks.halves[number, SET])
        for word in range(losers.size):
            held = sets.words[before, word] & sets.live[word]
            losers[word] |= held
            bit = 0
            while held:
                if held & np.uint64(1):
                    blocks.counts[word * 64 + bit] -= 1
                bit += 1
                held >>= np.uint64(1)
        blocks.halves[number, SET] = 0
        of.move(sets, before, 0)
        free(blocks, number, rests)
        given += 1
    return given


@compiled
def age(blocks: Blocks, by: int) -> None:
    """Subtract `by` from every block's time of its last match, down to 0."""
    for number in range(1, blocks.state[TOP]):
        matched = int64(blocks.quarters[number, MATCHED])
        blocks.quarters[number, MATCHED] = max(0, matched - by)
