"""Unsigned 64-bit words, keys and names, as bytes: 8 each, little-endian."""

import sys
from array import array
from collections.abc import Iterable

WORD_BYTES = 8


def pack_words(words: Iterable[int]) -> bytes:
    """Return words packed."""
    packed = array("Q", words)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def words_of(packed: bytes) -> "array[int]":
    """Return packed words as an array.

    Raises ValueError where the length is not a multiple of 8.
    """
    words = array("Q", packed)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def unpack_words(packed: bytes) -> list[int]:
    """Return packed words as a list. Raises ValueError where the length is not a multiple of 8."""
    return words_of(packed).tolist()
