"""Bounds how much longer a text can get in a tokenizer's normalisers, from the definition alone.

A normaliser may replace one character by a megabyte, so that a short request exhausts the memory.
Definitions are `tokenizers`' (`tokenizer.json`, `normalizer`); a precompiled map of characters is
SentencePiece's (`src/normalizer.cc`): the size of a trie in 4 bytes, the trie, and the replacements,
each ended by a zero byte.
"""

import base64
import math
import sys
from array import array
from collections.abc import Mapping
from typing import Any

MOST_TIMES = 256
"""The most bytes that normalisers may make of one byte; in known models XLM-RoBERTa's make most, 66."""
MOST_PIECES = 16
"""The most bytes that pre-tokenizers may make of one byte; each ByteLevel makes two."""
ENDLESS = 1 << 32
"""Cap of computed growths, which keeps the numbers small."""

TIMES = {
    # U+FDFA has 3 bytes, and 33 when it is decomposed.
    "NFKC": 11,
    "NFKD": 11,
    "NFC": 3,
    "NFD": 3,
    "Lowercase": 2,
    "BertNormalizer": 5,
    "ByteLevel": 2,
}
"""The most bytes that a step of each type makes of one byte; a type that is not listed makes one."""


# A unit (node) of the trie (darts-clone): a byte, a flag whether a key ends there, and an offset.
_LABEL = 1 << 31 | 0xFF
_HAS_LEAF = 1 << 8
_VALUE = (1 << 31) - 1


def growth(normalizer: Mapping[str, Any] | None) -> int:
    """Return the most bytes that a normaliser of tokenizer.json makes of one byte of text.

    A text of n bytes becomes shorter than (n + 1) times that. Raises ValueError, KeyError, TypeError or
    AttributeError for a malformed definition.
    """
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        times = 1
        for one in normalizer["normalizers"]:
            times = min(times * growth(one), ENDLESS)
        return times
    if kind == "Prepend":
        # Added tokens divide a text, and the prefix is put before each part, of a byte or more.
        return 1 + _size(normalizer["prepend"])
    if kind == "Replace":
        content, pattern = _size(normalizer["content"]), normalizer["pattern"]
        if least := _size(pattern.get("String", "")):
            return max(1, -(-content // least))
        if pattern.get("Regex") == " {2,}":
            return max(1, -(-content // 2))
        # An expression may match between any two characters.
        return 1 + content
    if kind == "Precompiled":
        return _growth_of_map(base64.b64decode(normalizer["precompiled_charsmap"] or ""))
    return TIMES.get(kind, 1)


def checked_growth(definition: Mapping[str, Any]) -> int:
    """Return the most bytes that a tokenizer makes of one byte of text.

    Raises ValueError for more than `MOST_TIMES` or `MOST_PIECES`, and the errors of `growth`.
    """
    times = growth(definition.get("normalizer"))
    pieces = pieces_growth(definition.get("pre_tokenizer"))
    if pieces > MOST_PIECES:
        raise ValueError(f"pre_tokenizer: makes up to {pieces} bytes of one; {MOST_PIECES} at most")
    if times > MOST_TIMES:
        raise ValueError(f"normalizer: makes up to {times} bytes of one; {MOST_TIMES} at most")
    return times * pieces


def pieces_growth(steps: Mapping[str, Any] | None) -> int:
    """Return the most bytes that a `pre_tokenizer` makes of one byte; raises the errors of `growth`."""
    if steps is None:
        return 1
    if steps["type"] == "Sequence":
        return min(math.prod(map(pieces_growth, steps["pretokenizers"])), ENDLESS)
    return TIMES.get(steps["type"], 1)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _growth_of_map(charsmap: bytes) -> int:
    """Return the most bytes that a precompiled map makes of one byte, rounded up.

    It walks the trie by levels and visits each unit once, by its shortest key, which grows the most.
    """
    size = int.from_bytes(charsmap[:4], "little")
    trie, texts = charsmap[4 : 4 + size], charsmap[4 + size :]
    units = array("I", trie[: len(trie) & ~3])
    if sys.byteorder == "big":
        units.byteswap()
    level, seen, most, depth = [0] if units else [], {0}, 1, 0
    while level:
        depth += 1
        behind = []
        for at in level:
            base = at ^ _offset(units[at])
            for byte in range(1, 256):
                child = base ^ byte
                if child in seen or child >= len(units):
                    continue
                unit = units[child]
                if unit & _LABEL != byte:
                    continue
                seen.add(child)
                behind.append(child)
                leaf = child ^ _offset(unit)
                if unit & _HAS_LEAF and leaf < len(units):
                    start = units[leaf] & _VALUE
                    end = texts.find(b"\0", start)
                    long = (len(texts) if end < 0 else end) - start
                    most = max(most, -(-long // depth))
        level = behind
    return most


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)
