"""Reads the parts of msgpack from bytes that are not trusted: no read goes past `end`.

Each function reads from position `at` on. Source: github.com/msgpack/msgpack, spec.md.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import inner, int64


@inner
def number(data: NDArray[np.uint8], at: int, size: int) -> np.uint64:
    """Return `size` bytes as a big-endian number."""
    word = np.uint64(0)
    for offset in range(size):
        word = (word << np.uint64(8)) | np.uint64(data[at + offset])
    return word


@inner
def half(data: NDArray[np.uint8], at: int) -> np.uint64:
    """Return the 4 bytes from `at` on as a big-endian number."""
    place = np.uint64(at)  # unsigned: Numba need not ask whether it counts from the end
    return (
        np.uint64(data[place]) << np.uint64(24)
        | np.uint64(data[place + np.uint64(1)]) << np.uint64(16)
        | np.uint64(data[place + np.uint64(2)]) << np.uint64(8)
        | np.uint64(data[place + np.uint64(3)])
    )


@inner
def list_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return an array's length, -1 where there is no array, and the position after its head."""
    if at >= end:
        return -1, at
    head = int64(data[at])
    if 0x90 <= head <= 0x9F:
        return head & 15, at + 1
    if head == 0xDC and at + 3 <= end:
        return int64(number(data, at + 1, 2)), at + 3
    if head == 0xDD and at + 5 <= end:
        return int64(number(data, at + 1, 4)), at + 5
    return -1, at


@inner
def map_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return a map's length, -1 for none or one above 65,535, and the position after its head."""
    if at >= end:
        return -1, at
    head = int64(data[at])
    if 0x80 <= head <= 0x8F:
        return head & 15, at + 1
    if head == 0xDE and at + 3 <= end:
        return int64(number(data, at + 1, 2)), at + 3
    return -1, at


@inner
def text_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return an ASCII text's length, -1 for none or one above 255 bytes, and where it begins."""
    if at >= end:
        return -1, at
    head = int64(data[at])
    if 0xA0 <= head <= 0xBF:
        length, at = head & 31, at + 1
    elif head == 0xD9 and at + 2 <= end:
        length, at = int64(data[at + 1]), at + 2
    else:
        return -1, at
    if at + length > end:
        return -1, at
    for offset in range(length):
        if data[at + offset] >= 0x80:
            return -1, at
    return length, at


@inner
def bytes_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return the length of some bytes, -1 for none or more than 65,535, and where they begin."""
    length = -1
    if at + 2 <= end and data[at] == 0xC4:
        length, at = int64(data[at + 1]), at + 2
    elif at + 3 <= end and data[at] == 0xC5:
        length, at = int64(number(data, at + 1, 2)), at + 3
    if at + length > end:
        return -1, at
    return length, at


@inner
def integer_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[np.uint64, int, int]:
    """Return an integer (a negative one plus 2^64), the position after it, and its sign.

    The sign is 1, or -1 for a negative one; 0 where there is no integer.
    """
    if at >= end:
        return np.uint64(0), at, 0
    head = int64(data[at])
    if head < 0x80:
        return np.uint64(head), at + 1, 1
    if head >= 0xE0:
        return ~np.uint64(0xFF) | np.uint64(head), at + 1, -1
    size = 0
    if 0xCC <= head <= 0xCF:
        size = 1 << (head - 0xCC)
    elif 0xD0 <= head <= 0xD3:
        size = 1 << (head - 0xD0)
    if not size or at + 1 + size > end:
        return np.uint64(0), at, 0
    word = number(data, at + 1, size)
    at += 1 + size
    if head >= 0xD0 and (word >> np.uint64(8 * size - 1)) & np.uint64(1):
        if size < 8:
            word |= ~np.uint64(0) << np.uint64(8 * size)
        return word, at, -1
    return word, at, 1


@inner
def _skip_one(data: NDArray[np.uint8], at: int, end: int) -> int:
    if at >= end:
        return -1
    head = int64(data[at])
    if head in (0xC0, 0xC2, 0xC3):
        return at + 1
    if head in (0xCA, 0xCB):
        after = at + (5 if head == 0xCA else 9)
        return after if after <= end else -1
    _, after, sign = integer_at(data, at, end)
    if sign:
        return after
    length, begin = text_at(data, at, end)
    return begin + length if length >= 0 else -1


@inner
def skip(data: NDArray[np.uint8], at: int, end: int) -> int:
    """Return the position after a plain value or a list of plain values; -1 where there is none.

    A list in a list is not plain: Numba cannot load recursive functions that it has kept.
    """
    count, after = list_at(data, at, end)
    if count < 0:
        return _skip_one(data, at, end)
    for _ in range(count):
        after = _skip_one(data, after, end)
        if after < 0:
            return -1
    return after
