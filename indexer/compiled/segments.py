"""Finds which slots hold a prompt's blocks, in the shared index's segments (`keys.segment_value`).

The values came from a server: each read is tested against the end of its value.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import allocating, inlined, int64
from warmpath.indexer.keys.key import WORD_BYTES as WORD
from warmpath.indexer.keys.segment_value import HEAD, MOST_RECORDS

ROOM = 1024
"""Stretches that there is room for at first."""


@inlined
def _word(values: NDArray[np.uint8], at: int) -> np.uint64:
    word = np.uint64(values[at])
    for byte in range(1, WORD):
        word |= np.uint64(values[at + byte]) << np.uint64(8 * byte)
    return word


@inlined
def _columns(values: NDArray[np.uint8], start: int, end: int) -> int:
    """Return a packed value's number of columns; 0 where it is not packed, or too long."""
    if end - start < HEAD or values[start] != 1 or values[start + 1] != 0:
        return 0
    columns = int64(values[start + 2]) | int64(values[start + 3]) << 8
    size = WORD + (columns + 7) // 8
    left = end - start - HEAD - WORD * columns
    if left <= 0 or left % size != 0 or left // size > MOST_RECORDS:
        return 0
    return columns


@inlined
def _place(table: NDArray[np.int64], slots: NDArray[np.uint64], slot: np.uint64) -> int:
    """Return where a slot is in the table, or the free place where it belongs."""
    mask = table.size - 1
    at = int64((slot * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while table[at] and slots[table[at] - 1] != slot:
        at = (at + 1) & mask
    return at


@inlined
def _same(values: NDArray[np.uint8], one: int, other: int, width: int) -> bool:
    for byte in range(width):
        if values[one + byte] != values[other + byte]:
            return False
    return True


@allocating
def of_segments(
    values: NDArray[np.uint8],
    ends: NDArray[np.int64],
    starts: NDArray[np.int64],
    keys: NDArray[np.uint64],
    found: NDArray[np.uint64],
    bad: NDArray[np.uint8],
) -> int:
    """Write the stretches of `keys` as rows: slot, first block, and the position after the last block.

    Return their number, which may be greater than the number of rows in `found`. Value n ends
    before byte `ends[n]` and is that of the blocks from `starts[n]` up to `starts[n + 1]`; if it is
    empty, nobody holds them. A value that cannot be read is marked in `bad`.
    """
    columns_in_all = 0
    begin = 0
    for number in range(ends.size):
        columns_in_all += _columns(values, begin, ends[number])
        begin = ends[number]
    places = 16
    while places < 2 * columns_in_all:
        places *= 2
    table = np.zeros(places, np.int64)
    slots = np.empty(columns_in_all, np.uint64)
    opened = np.empty(columns_in_all, np.int64)
    seen = np.zeros(columns_in_all, np.int64)
    live = np.empty(columns_in_all, np.int64)
    of_column = np.zeros(columns_in_all, np.int64)
    known, held, stretches, turn = 0, 0, 0, 0
    begin = 0
    for number in range(ends.size + 1):
        columns, width, records, first = 0, 0, 0, 0
        if number < ends.size:
            end = ends[number]
            columns = _columns(values, begin, end)
            if columns == 0 and end > begin:
                bad[number] = 1
            width = (columns + 7) // 8
            first = begin + HEAD + WORD * columns
            records = (end - first) // (WORD + width) if columns else 0
            for column in range(columns):
                slot = _word(values, begin + HEAD + WORD * column)
                one = of_column[column]
                if one < known and slots[one] == slot:
                    continue
                at = _place(table, slots, slot)
                if table[at] == 0:
                    slots[known] = slot
                    opened[known] = -1
                    known += 1
                    table[at] = known
                of_column[column] = table[at] - 1
            begin = end
        start = starts[number]
        stop = starts[number + 1] if number < ends.size else start + 1
        step = WORD + width
        next_record, before = 0, -2
        for block in range(start, stop):
            row = -1
            if number < ends.size and bad[number] == 0:
                key = keys[block]
                for tried in range(records):
                    record = next_record + tried
                    if record >= records:
                        record -= records
                    if _word(values, first + record * step) == key:
                        row = first + record * step + WORD
                        next_record = record + 1 if record + 1 < records else 0
                        break
            if row == before or (row >= 0 and before >= 0 and _same(values, row, before, width)):
                continue
            before = row
            # The holders differ from those of the block before.
            turn += 1
            if row >= 0:
                if columns & 7 and values[row + width - 1] >> (columns & 7):
                    bad[number] = 1
                else:
                    for column in range(columns):
                        if values[row + (column >> 3)] >> (column & 7) & 1:
                            one = of_column[column]
                            seen[one] = turn
                            if opened[one] < 0:
                                opened[one] = block
                                live[held] = one
                                held += 1
            kept = 0
            for at in range(held):
                one = live[at]
                if seen[one] == turn:
                    live[kept] = one
                    kept += 1
                    continue
                if stretches < found.shape[0]:
                    found[stretches, 0] = slots[one]
                    found[stretches, 1] = np.uint64(opened[one])
                    found[stretches, 2] = np.uint64(block)
                stretches += 1
                opened[one] = -1
            held = kept
    return stretches


def stretches_of(
    keys: NDArray[np.uint64], parts: Sequence[tuple[int, int, bytes | None]]
) -> tuple[list[list[int]], list[int]]:
    """Return the stretches of `keys` (rows as in `of_segments`), and which parts cannot be read.

    A part has the first position of its blocks, the position after them, and their packed value. Parts
    follow each other without a gap.
    """
    packed = [value or b"" for _, _, value in parts]
    values = np.frombuffer(b"".join(packed), np.uint8)
    ends = np.fromiter(accumulate(map(len, packed)), np.int64, len(packed))
    starts = np.array([*(start for start, _, _ in parts), len(keys)], np.int64)
    # An empty value cannot be read. A missing one (None) also has no bytes: nobody holds its blocks.
    bad = np.fromiter((value == b"" for _, _, value in parts), np.uint8, len(packed))
    room, count = 0, ROOM
    while count > room:
        room = count
        found = np.empty((room, 3), np.uint64)
        count = of_segments(values, ends, starts, keys, found, bad)
    return found[:count].tolist(), np.flatnonzero(bad).tolist()
