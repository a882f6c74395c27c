"""Sets of slots. Equal sets are stored once, with a count of the blocks that have them.

Blocks share few different sets, so a block has only its set's number (4 bytes), whatever the set's
size. Set 0 is the empty one. `live` has a bit for each slot that is not dropped; readers apply it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.table import after, stays
from warmpath.indexer.compiled.jit import compiled, inlined, inner, int64
from warmpath.indexer.compiled.outside import Zeros, zeros

TOP, FREE, USED, FROM, SLOT, TO = range(6)
"""Fields of `state`: the lowest number never given out; the first free number; how many sets are in use;
and the last answer of `flipped`: from which set, in which slot, to which set."""


class Sets(NamedTuple):
    """Sets in use. Shapes: n sets, w words of 64 slots, m places of the table."""

    words: NDArray[np.uint64]
    """(n, w): a bit a slot."""
    uses: NDArray[np.uint32]
    """(n): how many blocks have a set; for a free one, the number of the next free one."""
    hashes: NDArray[np.uint32]
    """(n): hashes of the words."""
    table: NDArray[np.uint32]
    """(m): numbers of sets by hash; 0 is an empty place."""
    live: NDArray[np.uint64]
    """(w): the slots that are not dropped."""
    scratch: NDArray[np.uint64]
    """(w): the set that is being made."""
    state: NDArray[np.int64]


def new_sets(capacity: int, words: int, places: int, make: Zeros) -> Sets:
    """Return empty arrays with room for `capacity` sets of `words` words; they take memory as sets come.

    The table does not grow; the caller fills a larger one (`refill`). `make` makes what readers read.
    """
    live = make(words, np.uint64)
    live[:] = ~np.uint64(0)
    state = np.zeros(6, np.int64)
    state[TOP] = 1
    state[FROM] = -1
    return Sets(
        words=make((capacity + 1, words), np.uint64, sparse=True),
        uses=zeros(capacity + 1, np.uint32, sparse=True),
        hashes=zeros(capacity + 1, np.uint32, sparse=True),
        table=np.zeros(places, np.uint32),
        live=live,
        scratch=np.zeros(words, np.uint64),
        state=state,
    )


def nbytes(sets: Sets) -> int:
    """Return the bytes that are in use."""
    return int(sets.state[TOP]) * row_bytes(sets.live.size) + sets.table.nbytes


def row_bytes(words: int) -> int:
    """Return the bytes of one set, without its places in the table."""
    return 8 * words + 8


@inner
def _hash(words: NDArray[np.uint64]) -> np.uint32:
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in words:
        mixed = (mixed ^ word) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(29)
    return np.uint32(mixed >> np.uint64(32))


@inner
def _home(code: np.uint32, places: int) -> int:
    return int64((np.uint64(code) * np.uint64(places)) >> np.uint64(32))


@inlined
def has(sets: Sets, number: int, slot: int) -> bool:
    """Whether a slot is in a set."""
    word = sets.words[number, slot >> 6]
    return bool((word >> np.uint64(slot & 63)) & np.uint64(1))


@inlined
def is_live(sets: Sets, number: int) -> bool:
    """Whether a set has a slot that is not dropped."""
    for word in range(sets.live.size):
        if sets.words[number, word] & sets.live[word]:
            return True
    return False


@inlined
def intern(sets: Sets) -> int:
    """Return the number of the set in `scratch`; a new set is stored, without blocks yet."""
    empty = True
    for word in sets.scratch:
        if word:
            empty = False
    if empty:
        return 0
    code = _hash(sets.scratch)
    table = sets.table
    at = _home(code, table.size)
    while table[at] != 0:
        number = int64(table[at])
        if sets.hashes[number] == code:
            same = True
            for word in range(sets.scratch.size):
                if sets.words[number, word] != sets.scratch[word]:
                    same = False
                    break
            if same:
                return number
        at = after(at, table.size)
    state = sets.state
    number = int64(state[FREE])
    if number:
        state[FREE] = int64(sets.uses[number])
    else:
        number = state[TOP]
        state[TOP] += 1
    state[USED] += 1
    sets.uses[number] = 0
    sets.hashes[number] = code
    for word in range(sets.scratch.size):
        sets.words[number, word] = sets.scratch[word]
    table[at] = np.uint32(number)
    return number


@inlined
def flipped(sets: Sets, number: int, slot: int) -> int:
    """Return the number of the set that differs from set `number` in `slot` alone."""
    state = sets.state
    if state[FROM] == number and state[SLOT] == slot:
        return int64(state[TO])
    for word in range(sets.scratch.size):
        sets.scratch[word] = sets.words[number, word]
    sets.scratch[slot >> 6] ^= np.uint64(1) << np.uint64(slot & 63)
    found = intern(sets)
    state[FROM], state[SLOT], state[TO] = number, slot, found
    return found


@inlined
def move(sets: Sets, before: int, after: int) -> None:
    """Count a block's change from one set of holders to another (0: none); free a set without blocks."""
    if after:
        sets.uses[after] += np.uint32(1)
    if before:
        sets.uses[before] -= np.uint32(1)
        if sets.uses[before] == 0:
            _forget(sets, before)


@inner
def _forget(sets: Sets, number: int) -> None:
    state = sets.state
    if state[FROM] == number or state[TO] == number:
        state[FROM] = -1
    table, hashes = sets.table, sets.hashes
    hole = _home(hashes[number], table.size)
    while table[hole] != number:
        hole = after(hole, table.size)
    at = hole
    while True:
        at = after(at, table.size)
        entry = table[at]
        if entry == 0:
            break
        begin = _home(hashes[entry], table.size)
        if not stays(hole, begin, at):
            table[hole] = entry
            hole = at
    table[hole] = 0
    for word in range(sets.scratch.size):
        sets.words[number, word] = 0
    sets.uses[number] = np.uint32(state[FREE])
    state[FREE] = number
    state[USED] -= 1


@inlined
def _enter(table: NDArray[np.uint32], code: np.uint32, number: int) -> None:
    place = _home(code, table.size)
    while table[place] != 0:
        place = after(place, table.size)
    table[place] = np.uint32(number)


@compiled
def refill(old: Sets, table: NDArray[np.uint32]) -> None:
    """Fill an empty table with all sets that are in use."""
    for at in range(old.table.size):
        number = int64(old.table[at])
        if number:
            _enter(table, old.hashes[number], number)


@compiled
def compact(old: Sets, new: Sets, numbers: NDArray[np.uint32]) -> None:
    """Copy the sets in use to other arrays, perhaps of wider sets; write the new number of each."""
    for word in range(old.live.size):
        new.live[word] = old.live[word]
    for at in range(old.table.size):
        number = int64(old.table[at])
        if number:
            fresh = new.state[TOP]
            new.state[TOP] += 1
            new.state[USED] += 1
            numbers[number] = fresh
            new.uses[fresh] = old.uses[number]
            for word in range(old.live.size):
                new.words[fresh, word] = old.words[number, word]
            new.hashes[fresh] = _hash(new.words[fresh])
            _enter(new.table, new.hashes[fresh], fresh)


def slots_of(words: NDArray[np.uint64]) -> list[int]:
    """Return the slots of a set."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(slot) for slot in np.flatnonzero(bits)]
