"""Checks that blocks, sets and their tables do not contradict each other."""

from typing import Any

import numpy as np

from warmpath.indexer.compiled.blocks import table
from warmpath.indexer.compiled.blocks.blocks import DEPTH, FREED, LIVE, NAMED, SET, TOP, Blocks
from warmpath.indexer.compiled.blocks.sets import USED, Sets, slots_of
from warmpath.indexer.invariant import BrokenInvariantError


def check(blocks: Blocks, sets: Sets) -> None:
    """Raise BrokenInvariantError where tables, sets and counts disagree."""
    top = int(blocks.state[TOP])
    numbers = np.flatnonzero(blocks.quarters[1:top, DEPTH] != FREED) + 1
    keys = blocks.records[numbers, 0]
    _require(len(numbers) == int(blocks.state[LIVE]), "the number of blocks is wrong")
    _require(len(np.unique(keys)) == len(keys), "two blocks have one key")
    for field, words, entries in (
        ("by_key", blocks.records, numbers),
        ("by_name", blocks.names, numbers[blocks.names[numbers, 0] != 0]),
    ):
        places = getattr(blocks, field)
        _require(
            np.count_nonzero(places) == len(entries), f"{field} has too many entries, or too few"
        )
        for number in entries.tolist():
            word = words[number, 0]
            at = table.seek(places, words, word, table.home(word, len(places)))
            while at >= 0 and table.number_at(places, at) != number:
                at = table.seek(places, words, word, table.after(at, len(places)))
            _require(at >= 0, f"{field} does not find block {number}")
    _require(
        int(blocks.state[NAMED]) == np.count_nonzero(blocks.names[numbers, 0]),
        "the number of names is wrong",
    )
    held = blocks.halves[numbers, SET]
    _require(bool((held != 0).all()), "a block that nobody holds is kept")
    uses: Any = np.bincount(held, minlength=1)
    used = np.flatnonzero(uses)
    _require(bool((sets.uses[used] == uses[used]).all()), "the uses of sets do not add up")
    _require(int(sets.state[USED]) == len(used), "sets that nobody has are kept")
    words_used = [tuple(row) for row in sets.words[used].tolist()]
    _require(len(set(words_used)) == len(used), "a set is kept twice")
    counts = np.zeros(len(blocks.counts), np.int64)
    for number in used.tolist():
        counts[slots_of(sets.words[number] & sets.live)] += uses[number]
    _require(bool((counts == blocks.counts).all()), "the counts of held keys do not add up")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenInvariantError(otherwise)
