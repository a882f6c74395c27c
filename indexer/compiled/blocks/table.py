"""Hash tables from a 64-bit word to the number of the record that has it.

Open addressing with linear probing. A place has 4 bytes: a record's number, and above it a tag, some
bits of its word's hash. A place with another tag is passed over without a look at its record.
Deleting shifts later entries back (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm R),
so no tombstones gather. A word's first place comes from multiplying, not masking, so that tables grow
by any factor.

`words` holds a record's word in its first column. Numbers begin with 1; 0 is an empty place. Several
records may have one word.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled, inlined, int64

Places = NDArray[np.uint32]
Words = NDArray[np.uint64]

NUMBER_BITS = 27
NUMBERS = (1 << NUMBER_BITS) - 1
"""The highest number that a record can have."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_NUMBER = np.uint32(NUMBERS)
_TAG = np.uint32(0xFFFFFFFF ^ NUMBERS)


@compiled
def home(word: np.uint64, places: int) -> int:
    """Return the place where the search for a word begins."""
    mixed = word * _MIX
    return int64(((mixed >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32))


@inlined
def _tag(word: np.uint64) -> np.uint32:
    return np.uint32((word * _MIX) & np.uint64(0xFFFFFFFF)) & _TAG


@inlined
def after(at: int, places: int) -> int:
    """Return the next place; after the last place comes the first."""
    return at + 1 if at + 1 < places else 0


@inlined
def stays(hole: int, begin: int, at: int) -> bool:
    """Whether the entry in place `at` must not fill a hole before it.

    The search for its word begins at `begin`. If that is behind the hole (and not behind `at`), the
    search would not find the entry in the hole.
    """
    return hole < begin <= at if hole <= at else begin > hole or begin <= at


@inlined
def seek(table: Places, words: Words, word: np.uint64, at: int) -> int:
    """Return the first place from `at` on whose record has the word.

    Where there is none, return -1 - e, with e the empty place where the search ended.
    """
    tag = _tag(word)
    while True:
        entry = table[at]
        if entry == 0:
            return -1 - at
        if (entry & _TAG) == tag and words[entry & _NUMBER, 0] == word:
            return at
        at = after(at, table.size)


@inlined
def number_at(table: Places, at: int) -> int:
    """Return the number of the record in a place."""
    return int64(table[at] & _NUMBER)


@inlined
def first_number(table: Places, word: np.uint64) -> int:
    """Return the number in the place where the search for a word begins; 0 for an empty place.

    The record may have another word.
    """
    return number_at(table, home(word, table.size))


@inlined
def find(table: Places, words: Words, word: np.uint64) -> int:
    """Return the number of a record that has the word; 0 for none."""
    at = seek(table, words, word, home(word, table.size))
    return number_at(table, at) if at >= 0 else 0


@inlined
def find_within(table: Places, words: Words, word: np.uint64) -> int:
    """Return what `find` does, from a table that another process may change meanwhile.

    It reads nothing outside of the arrays and comes to an end, whatever is in them.
    """
    tag = _tag(word)
    at = home(word, table.size)
    for _ in range(table.size):
        entry = table[at]
        if entry == 0:
            return 0
        number = int64(entry & _NUMBER)
        if (entry & _TAG) == tag and number < words.shape[0] and words[number, 0] == word:
            return number
        at = after(at, table.size)
    return 0


@compiled
def number_of(table: Places, words: Words, word: np.uint64) -> int:
    """Return what `find` does, to Python."""
    return find(table, words, word)


@inlined
def put(table: Places, at: int, word: np.uint64, number: int) -> None:
    """Add a record in the empty place where the search for its word ended."""
    table[at] = np.uint32(number) | _tag(word)


@inlined
def insert(table: Places, word: np.uint64, number: int) -> None:
    """Add a record. There must be an empty place, and another one for searches to end at."""
    at = home(word, table.size)
    while table[at] != 0:
        at = after(at, table.size)
    put(table, at, word, number)


@inlined
def delete(table: Places, words: Words, number: int) -> None:
    """Delete a record that is in the table; its word must still be there."""
    hole = home(words[number, 0], table.size)
    while number_at(table, hole) != number:
        hole = after(hole, table.size)
    at = hole
    while True:
        at = after(at, table.size)
        entry = table[at]
        if entry == 0:
            break
        begin = home(words[entry & _NUMBER, 0], table.size)
        if not stays(hole, begin, at):
            table[hole] = entry
            hole = at
    table[hole] = 0


@compiled
def refill(table: Places, words: Words, old: Places, ahead: NDArray[np.uint64]) -> None:
    """Add all entries of a table to an empty one.

    Words have the same order in every table, so the new one is filled from its beginning to its end;
    only the records are read at random, so many of them are read ahead (into `ahead`) at once.
    """
    start = 0
    while start < old.size:
        stop = min(start + ahead.size, old.size)
        for at in range(start, stop):
            ahead[at - start] = words[old[at] & _NUMBER, 0]
        for at in range(start, stop):
            if old[at] != 0:
                insert(table, ahead[at - start], number_at(old, at))
        start = stop
