"""The msgpack batches of vLLM and SGLang, read without a Python object for each token.

Scanning says of each batch whether it is *plain*: nothing but stores and removals, of blocks whose only
extra keys are adapters and salts, written as engines write them. A plain batch becomes rows and arrays;
any other batch is left to the pure codec (`indexer.engines`). Scanning must find exactly what the codec
would decode, so a doubtful batch is not plain; the fuzzer and `tests/indexer/compiled/test_scan.py`
check that.

Nothing here trusts the bytes. Every read is tested against the batch's end, and the arrays that are
written have room for everything that the bytes can contain: each name and each token takes a byte
at least, and an event `scanned.LEAST_EVENT` bytes.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled, inner, int64
from warmpath.indexer.compiled.scan.dialect import (
    IS_ANY,
    IS_EXTRAS,
    IS_GROUP,
    IS_LORA,
    IS_LORA_NUMBER,
    IS_MEDIUM,
    IS_NAMES,
    IS_NEXT_TOKENS,
    IS_NUMBER,
    IS_PARENT,
    IS_SALT,
    IS_SIZE,
    IS_TEXT,
    IS_TOKENS,
    IS_TOKENS_OR_PAIRS,
    MEDIUMS,
    REMOVED_FIELDS,
    STORED,
    STORED_FIELDS,
    TAGS,
    Dialect,
    meaning,
    which,
)
from warmpath.indexer.compiled.scan.event_lists import (
    are_pairs,
    lists_at,
    name_at,
    names_at,
    next_tokens_at,
    pairs_at,
    tokens_at,
)
from warmpath.indexer.compiled.scan.msgpack import integer_at, list_at, map_at, skip, text_at
from warmpath.indexer.compiled.scan.scanned import (
    ANOTHER,
    EXTRAS_AT,
    GROUP,
    HAS_PAIRS,
    HAS_PARENT,
    KIND,
    LORA,
    LORA_AT,
    NAMES,
    NAMES_AT,
    SALT,
    SALT_AT,
    SIZE,
    TIER,
    TOKENS,
    TOKENS_AT,
    Scanned,
)
from warmpath.indexer.engines.cache_groups import MOST_BLOCK_SIZE, MOST_GROUP, MOST_NUMBER


@inner
def _field(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    rule: int,
    dialect: Dialect,
    scanned: Scanned,
    event: int,
) -> int:
    """Read one field of an event; return the position after it, or -1 where it is not plain."""
    row = scanned.events[event]
    if rule == IS_NAMES:
        row[NAMES], at = names_at(data, at, end, scanned.names, row[NAMES_AT])
        return at if row[NAMES] >= 0 else -1
    if rule in (IS_TOKENS, IS_TOKENS_OR_PAIRS):
        tokens, first = scanned.tokens, row[TOKENS_AT]
        row[HAS_PAIRS] = rule == IS_TOKENS_OR_PAIRS and are_pairs(data, at, end)
        if row[HAS_PAIRS]:
            row[TOKENS], at = pairs_at(data, at, end, tokens, scanned.seconds, first)
        else:
            row[TOKENS], at = tokens_at(data, at, end, tokens, first)
        return at if row[TOKENS] >= 0 else -1
    if rule == IS_SIZE:
        word, at, sign = integer_at(data, at, end)
        if sign != 1 or word > np.uint64(MOST_BLOCK_SIZE):
            return -1
        row[SIZE] = int64(word)
        return at
    if rule == IS_ANY:
        return skip(data, at, end)
    if at < end and data[at] == 0xC0:
        if rule == IS_PARENT:
            row[HAS_PARENT] = 0
        return at + 1
    if rule == IS_PARENT:
        row[HAS_PARENT] = 1
        scanned.parents[event], at = name_at(data, at, end)
        return at
    if rule == IS_EXTRAS:
        some, after = lists_at(data, at, end)
        row[EXTRAS_AT] = at if some else -1
        return after
    if rule == IS_NEXT_TOKENS:
        # Engines write the names, the tokens and the size before, which tell where these tokens go.
        size = row[SIZE]
        if row[NAMES] < 0 or row[TOKENS] < 0 or size < 0:
            return -1
        whole = size > 0 and row[TOKENS] == row[NAMES] * size
        row[HAS_PAIRS] = whole
        count, at = next_tokens_at(
            data,
            at,
            end,
            scanned.seconds,
            row[TOKENS_AT] + size - 1,
            size,
            row[NAMES] if whole else 0,
        )
        return at if count == row[NAMES] or (count >= 0 and not whole) else -1
    if rule in (IS_GROUP, IS_NUMBER, IS_LORA_NUMBER):
        word, at, sign = integer_at(data, at, end)
        if rule == IS_GROUP:
            if sign != 1 or word > np.uint64(MOST_GROUP):
                return -1
            row[GROUP] = int64(word)
        elif rule == IS_NUMBER and sign == 1 and word > np.uint64(MOST_NUMBER):
            return -1
        elif rule == IS_LORA_NUMBER and row[LORA] == 0:
            row[LORA] = ANOTHER
        return at if sign else -1
    length, begin = text_at(data, at, end)
    if length < 0:
        return -1
    if rule == IS_MEDIUM:
        medium = which(dialect, MEDIUMS, data, begin, length)
        if medium < 0:
            return -1
        row[TIER] = meaning(dialect, MEDIUMS, medium)
    elif rule == IS_LORA:
        if length:
            row[LORA_AT], row[LORA] = begin, length
    elif rule == IS_SALT:
        row[SALT_AT], row[SALT] = begin, length
    elif rule != IS_TEXT:
        return -1
    return begin + length


@inner
def _has_plain_extras(data: NDArray[np.uint8], end: int, row: NDArray[np.int64]) -> bool:
    """Whether a store's extra keys are its adapter and, in a prompt's first block, its salt.

    They are lists of plain values (`lists_at`). The salt's position and length are written to `row`.
    """
    count, at = list_at(data, row[EXTRAS_AT], end)
    if count != row[NAMES]:
        return False
    for block in range(count):
        if data[at] == 0xC0:
            at += 1
            continue
        inner, at = list_at(data, at, end)
        others = 0
        for number in range(inner):
            length, begin = text_at(data, at, end)
            if length < 0:
                return False
            is_lora = number == 0 and length == row[LORA]
            for offset in range(length if is_lora else 0):
                if data[begin + offset] != data[row[LORA_AT] + offset]:
                    is_lora = False
                    break
            if not is_lora:
                others += 1
                if block or row[HAS_PARENT] or others > 1:
                    return False
                row[SALT_AT], row[SALT] = begin, length
            at = begin + length
    return True


@inner
def _event(
    data: NDArray[np.uint8], at: int, end: int, dialect: Dialect, scanned: Scanned, event: int
) -> int:
    """Read one event; return the position after it, or -1 where it is not plain."""
    row = scanned.events[event]
    row[KIND], row[TIER], row[GROUP] = 0, 0, 0
    row[NAMES], row[HAS_PARENT], row[TOKENS], row[SIZE] = -1, -1, -1, -1
    row[HAS_PAIRS], row[LORA], row[SALT], row[EXTRAS_AT] = 0, 0, 0, -1
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


@inner
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
    """Read a batch; return the next event, name and token: event -1 if it is not plain."""
    fields, at = list_at(data, at, end)
    if fields < 2 or at >= end:
        return -1, name, token
    # The engine's time of the step: a float, which has no effect here.
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
            if row[HAS_PARENT] < 0 or size < 0 or row[TOKENS] < 0:
                return -1, name, token
            if size > 0 and row[TOKENS] == row[NAMES] * size:
                if row[EXTRAS_AT] >= 0 and not _has_plain_extras(data, end, row):
                    return -1, name, token
                token += row[TOKENS]
            elif dialect.masks[0]:
                row[TOKENS] = -1
            else:
                return -1, name, token
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
    ends: NDArray[np.int64], dialect: Dialect, scanned: Scanned, events: NDArray[np.int64]
) -> int:
    """Scan batches that lie one behind the other in `scanned.data`, up to the first that is not plain.

    `ends` has the position where each ends. Return how many are plain, and write to `events` how many
    events were read up to the end of each. There must be `room` for what the bytes can contain.
    """
    data = scanned.data
    event, name, token, begin = 0, 0, 0, 0
    for batch in range(ends.size):
        after, name, token = _batch(data, begin, ends[batch], dialect, scanned, event, name, token)
        if after < 0:
            return batch
        event = after
        events[batch] = event
        begin = ends[batch]
    return ends.size
