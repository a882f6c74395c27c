"""How engines write their events: the fields of each, and the values of a plain event's fields."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import inner, int64
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.engines.wire import TIERS

STORED, REMOVED = 1, 2

(
    IS_NAMES,
    IS_PARENT,
    IS_TOKENS,
    IS_TOKENS_OR_PAIRS,
    IS_SIZE,
    IS_MEDIUM,
    IS_GROUP,
    IS_LORA,
    IS_LORA_NUMBER,
    IS_SALT,
    IS_EXTRAS,
    IS_NEXT_TOKENS,
    IS_NUMBER,
    IS_TEXT,
    IS_ANY,
) = range(15)
"""Kinds of values of a plain event's field. Values of the last three are ignored: nil or a number, nil
or a text, any plain value."""


TAGS, STORED_FIELDS, REMOVED_FIELDS, MEDIUMS = range(4)
"""The numbers of a dialect's lists of words."""


class Dialect(NamedTuple):
    """How an engine writes its events: lists of words, w in all, and the meaning of each."""

    letters: NDArray[np.uint8]
    rows: NDArray[np.int64]
    """(w, 3): where a word begins in `letters`, where it ends, and its meaning: a kind of event, a
    kind of value (`IS_NAMES` and so on) or a tier."""
    lists: NDArray[np.int64]
    """(5): where each list begins in `rows`."""
    masks: NDArray[np.bool_]
    """(1): whether a store may have more tokens than its blocks; its tokens cannot be used then."""


def _dialect(stored: dict[str, int], removed: dict[str, int], *, masks: bool) -> Dialect:
    """Return a dialect whose stores and removals have these fields, in an event's order."""
    tiers = list(Tier)
    mediums = {form(medium): tier for medium, tier in TIERS.items() for form in (str, str.upper)}
    lists: list[dict[str, int]] = [
        {"BlockStored": STORED, "BlockRemoved": REMOVED},
        stored,
        removed,
        {medium: tiers.index(tier) for medium, tier in mediums.items()},
    ]
    letters, rows, starts = b"", [], [0]
    for words in lists:
        for word, meaning in words.items():
            rows.append((len(letters), len(letters) + len(word), meaning))
            letters += word.encode()
        starts.append(len(rows))
    return Dialect(
        np.frombuffer(letters, np.uint8),
        np.array(rows, np.int64),
        np.array(starts, np.int64),
        np.array([masks]),
    )


VLLM = _dialect(
    {
        "block_hashes": IS_NAMES,
        "parent_block_hash": IS_PARENT,
        "token_ids": IS_TOKENS,
        "block_size": IS_SIZE,
        "lora_id": IS_LORA_NUMBER,
        "medium": IS_MEDIUM,
        "lora_name": IS_LORA,
        "extra_keys": IS_EXTRAS,
        "group_idx": IS_GROUP,
        "kv_cache_spec_kind": IS_TEXT,
        "kv_cache_spec_sliding_window": IS_NUMBER,
        "locality": IS_TEXT,
        "ownership": IS_TEXT,
        "session_id": IS_TEXT,
        "lookahead_token_ids": IS_NEXT_TOKENS,
    },
    {
        "block_hashes": IS_NAMES,
        "medium": IS_MEDIUM,
        "group_idx": IS_GROUP,
        "locality": IS_TEXT,
        "ownership": IS_TEXT,
    },
    masks=True,
)

SGLANG = _dialect(
    {
        "block_hashes": IS_NAMES,
        "parent_block_hash": IS_PARENT,
        "token_ids": IS_TOKENS_OR_PAIRS,
        "block_size": IS_SIZE,
        "lora_id": IS_LORA_NUMBER,
        "medium": IS_MEDIUM,
        "cache_salt": IS_SALT,
        "session_id": IS_ANY,
        "lora_name": IS_LORA,
    },
    {"block_hashes": IS_NAMES, "medium": IS_MEDIUM},
    masks=False,
)


DIALECTS = {"vllm": VLLM, "sglang": SGLANG}


@inner
def which(dialect: Dialect, words: int, data: NDArray[np.uint8], at: int, length: int) -> int:
    """Return the number of a string in a list of words; -1 where it is not in it."""
    first = dialect.lists[words]
    for row in range(first, dialect.lists[words + 1]):
        begin = dialect.rows[row, 0]
        if dialect.rows[row, 1] - begin != length:
            continue
        same = True
        for offset in range(length):
            if dialect.letters[begin + offset] != data[at + offset]:
                same = False
                break
        if same:
            return int64(row - first)
    return -1


@inner
def meaning(dialect: Dialect, words: int, number: int) -> int:
    """Return the meaning of a word (`Dialect.rows`)."""
    return int64(dialect.rows[dialect.lists[words] + number, 2])
