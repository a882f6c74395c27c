"""The lists that events have: names, token ids, pairs of them, extra keys.

As in `indexer.compiled.scan.msgpack`, the bytes are not trusted, and no read goes past `end`. Each
function that reads also returns the position after the part that it read. Where the bytes are
something else, the count is -1; of functions that return no count, the position is -1.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import inlined, inner, int64
from warmpath.indexer.compiled.keys import bytes_key
from warmpath.indexer.compiled.scan.msgpack import bytes_at, half, integer_at, list_at, skip


@inner
def name_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[np.uint64, int]:
    """Read a name (`indexer.engines.event.name_of`); return it and the position after it."""
    length, begin = bytes_at(data, at, end)
    if length >= 0:
        return bytes_key(data, begin, length, np.uint64(0)), begin + length
    word, at, sign = integer_at(data, at, end)
    return word, at if sign else -1


@inner
def names_at(
    data: NDArray[np.uint8], at: int, end: int, into: NDArray[np.uint64], first: int
) -> tuple[int, int]:
    """Read a list of names into `into`, from `first` on; return their number and the position."""
    count, at = list_at(data, at, end)
    if count < 0 or count > end - at:
        return -1, at
    for number in range(count):
        if at + 9 <= end and data[at] == 0xCF:
            # As `integer_at`, but nearly all names have this form, so it comes first.
            word = half(data, at + 1) << np.uint64(32) | half(data, at + 5)
            at += 9
        else:
            word, at = name_at(data, at, end)
            if at < 0:
                return -1, at
        into[first + number] = word
    return count, at


@inner
def tokens_at(
    data: NDArray[np.uint8], at: int, end: int, into: NDArray[np.uint32], first: int
) -> tuple[int, int]:
    """Read a list of token ids into `into`, from `first` on; return their number and the position."""
    count, at = list_at(data, at, end)
    if count < 0 or count > end - at:
        return -1, at
    for number in range(count):
        if at >= end:
            return -1, at
        head = np.uint64(data[np.uint64(at)])
        # As `integer_at`, but nearly all tokens have one of these two forms. One branch reads both, as
        # the processor cannot predict which comes next.
        if (head == np.uint64(0xCD) or head == np.uint64(0xCE)) and at + 5 <= end:
            short = np.uint64(0xCE) - head
            word = half(data, at + 1) >> (short << np.uint64(4))
            into[np.uint64(first + number)] = np.uint32(word)
            at += 5 - int64(short << np.uint64(1))
        else:
            word, at, sign = integer_at(data, at, end)
            if sign != 1 or word > np.uint64(0xFFFFFFFF):
                return -1, at
            into[first + number] = np.uint32(word)
    return count, at


@inlined
def _token(data: NDArray[np.uint8], at: int, end: int) -> tuple[np.uint32, int]:
    word, at, sign = integer_at(data, at, end)
    if sign != 1 or word > np.uint64(0xFFFFFFFF):
        return np.uint32(0), -1
    return np.uint32(word), at


@inner
def pairs_at(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    first: NDArray[np.uint32],
    second: NDArray[np.uint32],
    start: int,
) -> tuple[int, int]:
    """Read pairs of token ids into two arrays, from `start` on; return their number and the position."""
    count, at = list_at(data, at, end)
    if count < 0 or count > end - at:
        return -1, at
    for number in range(count):
        if at >= end or data[at] != 0x92:
            return -1, at
        first[start + number], at = _token(data, at + 1, end)
        if at < 0:
            return -1, at
        second[start + number], at = _token(data, at, end)
        if at < 0:
            return -1, at
    return count, at


@inner
def next_tokens_at(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    into: NDArray[np.uint32],
    first: int,
    step: int,
    most: int,
) -> tuple[int, int]:
    """Read a list of lists of one token id each; return their number and the position after them.

    The tokens of the first `most` go into `into`, from `first` on at every `step`th place.
    """
    count, at = list_at(data, at, end)
    if count < 0 or count > end - at:
        return -1, at
    for number in range(count):
        if at >= end or data[at] != 0x91:
            return -1, at
        token, at = _token(data, at + 1, end)
        if at < 0:
            return -1, at
        if number < most:
            into[first + number * step] = token
    return count, at


@inlined
def are_pairs(data: NDArray[np.uint8], at: int, end: int) -> bool:
    """Whether a list begins with a pair."""
    count, at = list_at(data, at, end)
    return count > 0 and at < end and data[at] == 0x92


@inner
def lists_at(data: NDArray[np.uint8], at: int, end: int) -> tuple[bool, int]:
    """Read a list of nils and lists of plain values; return whether one has values, and the position."""
    count, at = list_at(data, at, end)
    some = False
    for _ in range(count):
        if at < end and data[at] == 0xC0:
            at += 1
            continue
        inner, _ = list_at(data, at, end)
        if inner < 0:
            return False, -1
        some = some or inner > 0
        at = skip(data, at, end)
        if at < 0:
            return False, -1
    return some, at if count >= 0 else -1
