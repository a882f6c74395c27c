"""The msgpack batches of vLLM and SGLang, read without a Python object for each token.

Scanning says of each batch whether it is *plain*: nothing but stores and removals, of ordinary blocks,
written as engines write them. A plain batch becomes rows and arrays; any other one is left to the pure
codec (`indexer.engines`), which decides what it means. So what is scanned must be what the codec would
decode, and what is doubtful is not plain: the fuzzer and `tests/indexer/test_scan.py` hold it to that.

Nothing here trusts the bytes. Every read is tested against the batch's end, and the arrays that are
written have as many elements as the batch has bytes, since each name and each token takes one at least.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.compiled.dialect import (
    IS_ANY,
    IS_KIND,
    IS_MEDIUM,
    IS_NAMES,
    IS_NILS,
    IS_NUMBER,
    IS_PARENT,
    IS_SIZE,
    IS_TEXT,
    IS_TOKENS,
    IS_ZERO,
    KINDS,
    MEDIUMS,
    REMOVED_FIELDS,
    STORED,
    STORED_FIELDS,
    TAGS,
    Dialect,
    meaning,
    which,
)
from indexer.compiled.jit import compiled
from indexer.compiled.memory import zeros
from indexer.compiled.msgpack import half, integer_at, list_at, map_at, skip, text_at

KIND, TIER, NAMES_AT, NAMES, HAS_PARENT, TOKENS_AT, SIZE = range(7)
"""Columns of `Scanned.events`."""


class Scanned(NamedTuple):
    """What was scanned. Shapes: e events, n names and t tokens."""

    events: NDArray[np.int64]
    """(e, 7): kind, tier, first name, names, whether there is a parent, first token, block size."""
    parents: NDArray[np.uint64]
    """(e)"""
    names: NDArray[np.uint64]
    """(n)"""
    tokens: NDArray[np.uint32]
    """(t)"""
    counted: NDArray[np.int64]
    """(1): the tokens of the event that is being read."""


def room(size: int) -> Scanned:
    """Return room for what `size` bytes can hold."""
    return Scanned(
        zeros((size, 7), np.int64),
        zeros(size, np.uint64),
        zeros(size, np.uint64),
        zeros(size, np.uint32),
        np.zeros(1, np.int64),
    )


@compiled
def _numbers(
    data: NDArray[np.uint8], at: int, end: int, into: NDArray[np.uint64], first: int
) -> tuple[int, int]:
    """Read a list of names; return how many and what follows, or -1."""
    count, at = list_at(data, at, end)
    if count < 0 or count > end - at:
        return -1, at
    for number in range(count):
        if at + 9 <= end and data[at] == 0xCF:
            # As `_integer`, the form that nearly all names have first.
            word = half(data, at + 1) << np.uint64(32) | half(data, at + 5)
            at += 9
        else:
            word, at, sign = integer_at(data, at, end)
            if sign == 0:
                return -1, at
        into[first + number] = word
    return count, at


@compiled
def _token_ids(
    data: NDArray[np.uint8], at: int, end: int, into: NDArray[np.uint32], first: int
) -> tuple[int, int]:
    """Read a list of token ids; return how many and what follows, or -1."""
    count, at = list_at(data, at, end)
    if count < 0 or count > end - at:
        return -1, at
    for number in range(count):
        if at >= end:
            return -1, at
        head = np.uint64(data[np.uint64(at)])
        # As `_integer`, the two forms that nearly all tokens have first, and both in one, since which
        # of them comes next cannot be foretold.
        if (head == np.uint64(0xCD) or head == np.uint64(0xCE)) and at + 5 <= end:
            short = np.uint64(0xCE) - head
            word = half(data, at + 1) >> (short << np.uint64(4))
            into[np.uint64(first + number)] = np.uint32(word)
            at += 5 - np.int64(short << np.uint64(1))
        else:
            word, at, sign = integer_at(data, at, end)
            if sign != 1 or word > np.uint64(0xFFFFFFFF):
                return -1, at
            into[first + number] = np.uint32(word)
    return count, at


@compiled
def _field(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    rule: int,
    dialect: Dialect,
    scanned: Scanned,
    event: int,
) -> int:
    """Read one field of an event; return what follows it, or -1 where it is not plain."""
    row = scanned.events[event]
    if rule == IS_NAMES:
        row[NAMES], at = _numbers(data, at, end, scanned.names, row[NAMES_AT])
        return at if row[NAMES] >= 0 else -1
    if rule == IS_TOKENS:
        scanned.counted[0], at = _token_ids(data, at, end, scanned.tokens, row[TOKENS_AT])
        return at if scanned.counted[0] >= 0 else -1
    if rule == IS_SIZE:
        word, at, sign = integer_at(data, at, end)
        if sign != 1 or word >= np.uint64(1 << 31):
            return -1
        row[SIZE] = np.int64(word)
        return at
    if rule == IS_ANY:
        return skip(data, at, end)
    if at < end and data[at] == 0xC0:
        if rule == IS_PARENT:
            row[HAS_PARENT] = 0
        elif rule == IS_MEDIUM:
            row[TIER] = 0
        return at + 1
    if rule == IS_PARENT:
        word, at, sign = integer_at(data, at, end)
        row[HAS_PARENT] = 1
        scanned.parents[event] = word
        return at if sign else -1
    if rule == IS_MEDIUM:
        length, begin = text_at(data, at, end)
        medium = which(dialect, MEDIUMS, data, begin, length) if length >= 0 else -1
        if medium < 0:
            return -1
        row[TIER] = meaning(dialect, MEDIUMS, medium)
        return begin + length
    if rule == IS_NILS:
        count, at = list_at(data, at, end)
        if count < 0 or at + count > end:
            return -1
        for offset in range(count):
            if data[at + offset] != 0xC0:
                return -1
        return at + count
    if rule == IS_ZERO:
        return at + 1 if at < end and data[at] == 0 else -1
    if rule == IS_NUMBER:
        _, at, sign = integer_at(data, at, end)
        return at if sign else -1
    if rule in (IS_KIND, IS_TEXT):
        length, begin = text_at(data, at, end)
        if length < 0 or (rule == IS_KIND and which(dialect, KINDS, data, begin, length) < 0):
            return -1
        return begin + length
    return -1


@compiled
def _event(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    dialect: Dialect,
    scanned: Scanned,
    event: int,
) -> int:
    """Read one event; return what follows it, or -1 where it is not plain."""
    row = scanned.events[event]
    row[KIND], row[TIER], row[NAMES], row[HAS_PARENT], row[SIZE] = 0, 0, -1, -1, -1
    scanned.counted[0] = -1
    seen = 0
    count, after = list_at(data, at, end)
    if count >= 1:
        length, begin = text_at(data, after, end)
        if length < 0:
            return -1
        row[KIND] = 1 + which(dialect, TAGS, data, begin, length)
        at = begin + length
        if not row[KIND]:
            return -1
        fields = STORED_FIELDS if row[KIND] == STORED else REMOVED_FIELDS
        known = dialect.lists[fields + 1] - dialect.lists[fields]
        for number in range(count - 1):
            if number < known:
                rule = meaning(dialect, fields, number)
                at = _field(data, at, end, rule, dialect, scanned, event)
            else:
                at = skip(data, at, end)
            if at < 0:
                return -1
        return at
    count, at = map_at(data, at, end)
    if count < 0:
        return -1
    # The tag says what the other keys mean, and engines write it first.
    length, begin = text_at(data, at, end)
    if length != 4 or data[begin] != 0x74 or data[begin + 1] != 0x79:
        return -1
    if data[begin + 2] != 0x70 or data[begin + 3] != 0x65:
        return -1
    length, begin = text_at(data, begin + 4, end)
    if length < 0:
        return -1
    row[KIND] = 1 + which(dialect, TAGS, data, begin, length)
    if not row[KIND]:
        return -1
    at = begin + length
    fields = STORED_FIELDS if row[KIND] == STORED else REMOVED_FIELDS
    for _ in range(count - 1):
        length, begin = text_at(data, at, end)
        if length < 0:
            return -1
        number = which(dialect, fields, data, begin, length)
        at = begin + length
        if number < 0:
            if length == 4 and data[begin] == 0x74:
                return -1  # perhaps the tag once more
            at = skip(data, at, end)
        else:
            if seen >> number & 1:
                return -1
            seen |= 1 << number
            rule = meaning(dialect, fields, number)
            at = _field(data, at, end, rule, dialect, scanned, event)
        if at < 0:
            return -1
    return at


@compiled
def _batch(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    dialect: Dialect,
    scanned: Scanned,
    event: int,
    name: int,
    token: int,
) -> tuple[int, int, int]:
    """Read a batch; return the next event, name and token, or -1 where it is not plain."""
    fields, at = list_at(data, at, end)
    if fields < 2 or at >= end:
        return -1, name, token
    # The time of the step: a float, which decides nothing.
    if data[at] != 0xCB or at + 9 > end:
        return -1, name, token
    count, at = list_at(data, at + 9, end)
    if count < 0 or count > end - at:
        return -1, name, token
    for _ in range(count):
        row = scanned.events[event]
        row[NAMES_AT], row[TOKENS_AT] = name, token
        at = _event(data, at, end, dialect, scanned, event)
        if at < 0 or row[NAMES] < 0:
            return -1, name, token
        name += row[NAMES]
        if row[KIND] == STORED:
            size = row[SIZE]
            if row[HAS_PARENT] < 0 or size < 1 or row[NAMES] < 1:
                return -1, name, token
            if scanned.counted[0] != row[NAMES] * size:
                return -1, name, token
            token += scanned.counted[0]
        event += 1
    if fields > 2:
        if at < end and data[at] == 0xC0:
            at += 1
        else:
            _, at, sign = integer_at(data, at, end)
            if sign == 0:
                return -1, name, token
    for _ in range(fields - 3):
        at = skip(data, at, end)
        if at < 0:
            return -1, name, token
    return (event if at == end else -1), name, token


@compiled
def scan(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    dialect: Dialect,
    scanned: Scanned,
    events: NDArray[np.int64],
) -> int:
    """Scan batches that lie one behind the other, up to the first that is not plain.

    `ends` says where each ends. Return how many are plain; `events` is how many events were read up
    to each one's end. The arrays of `scanned` have as many elements as `data` has.
    """
    event, name, token, begin = 0, 0, 0, 0
    for batch in range(ends.size):
        after, name, token = _batch(data, begin, ends[batch], dialect, scanned, event, name, token)
        if after < 0:
            return batch
        event = after
        events[batch] = event
        begin = ends[batch]
    return ends.size
