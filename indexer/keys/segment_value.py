"""A segment's value in Redis: the slots that hold each of its blocks, as bytes.

    packed   1, 0, columns (u16), a slot for each column (8 bytes), then records: a block's key
             (8 bytes) and its bitmap, column j at byte j >> 3, bit j & 7
    spilled  2, 0, 0 (u16), blocks (u32): each block has a field of its own, named by segment and key,
             with a packed value of one record

All numbers are little-endian. Every record has a holder, every column has a block, and no block has
two records; if one has, a reader may use any of them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.keys.key import WORD_BYTES, unpack_words

PACKED = 1
SPILLED = 2
HEAD = 4
"""Bytes before the slots."""
MOST_RECORDS = 512
"""The most records of a packed segment; one with more is spilled."""


class BadSegmentError(ValueError):
    """A segment's value does not have a form that this version writes."""


class Packed(NamedTuple):
    """The content of a segment's value in Redis: which slots hold which keys, as a bitmap."""

    slots: tuple[int, ...]
    """The slot of each column."""
    keys: NDArray[np.uint64]
    """The key of each record."""
    bits: NDArray[np.uint8]
    """Bitmaps: a row for each record, `ceil(columns / 8)` bytes wide."""

    def held(self, column: int) -> NDArray[np.uint64]:
        """Return the keys that a column's slot holds."""
        picked = (self.bits[:, column >> 3] >> np.uint8(column & 7)) & np.uint8(1)
        return self.keys[picked.astype(np.bool_)]


def width_of(columns: int) -> int:
    """Return the bytes of one record's bitmap."""
    return (columns + 7) >> 3


def records_at(value: bytes) -> tuple[int, int]:
    """Return where the records of a packed value begin, and its number of columns.

    Raises BadSegmentError where it is cut off, not packed, or has no column, no record or too many.
    """
    if len(value) < HEAD or value[0] != PACKED or value[1]:
        raise BadSegmentError(
            f"a segment's value is not packed: it begins with {value[:HEAD].hex() or 'nothing'}"
        )
    columns = value[2] | value[3] << 8
    start = HEAD + WORD_BYTES * columns
    left = len(value) - start
    records, rest = divmod(left, WORD_BYTES + width_of(columns))
    if not columns or rest or not 0 < records <= MOST_RECORDS:
        raise BadSegmentError(
            f"a segment's value of {len(value)} bytes does not hold 1 to {MOST_RECORDS} records "
            f"of {columns} columns"
        )
    return start, columns


def slots_of(value: bytes) -> tuple[int, ...]:
    """Return the slots that occur in a packed value. Raises BadSegmentError like `records_at`."""
    start, _ = records_at(value)
    return tuple(unpack_words(value[HEAD:start]))


def decode(value: bytes) -> Packed:
    """Return the contents of a packed value. Raises BadSegmentError where it is malformed."""
    start, columns = records_at(value)
    rows = np.frombuffer(value, np.uint8, offset=start).reshape(-1, WORD_BYTES + width_of(columns))
    keys = np.ascontiguousarray(rows[:, :WORD_BYTES]).view("<u8")[:, 0]
    bits = rows[:, WORD_BYTES:]
    if columns & 7 and (bits[:, -1] >> np.uint8(columns & 7)).any():
        raise BadSegmentError(f"a bitmap has more bits than the {columns} columns of its segment")
    return Packed(tuple(unpack_words(value[HEAD:start])), keys.astype(np.uint64, copy=False), bits)


def is_spilled(value: bytes | None) -> bool:
    """Return whether a segment's value (None: there is none) begins like a spilled one's."""
    return bool(value and value[0] == SPILLED)


def spilled_blocks(value: bytes) -> int | None:
    """Return how many blocks of a segment have fields of their own; None where it is not spilled.

    Raises BadSegmentError for a malformed marker.
    """
    if not is_spilled(value):
        return None
    if len(value) != 8 or any(value[1:HEAD]):
        raise BadSegmentError(f"a spilled segment's value is malformed: {value[:16].hex()}")
    return int.from_bytes(value[HEAD:], "little")
