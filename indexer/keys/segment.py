"""Segments: stretches of a prompt's blocks that are stored together.

A segment is named by the key of its first block, which also stands for everything before it. So prompts
with a common beginning share the segments up to where they part, and no others.
"""

from array import array
from collections.abc import Collection, Sequence

import msgspec

from warmpath.indexer.keys.key import WORD_BYTES, pack_words, unpack_words

SEGMENT = 64
"""How many blocks a segment has: 1,024 tokens where a block has 16."""


class SavedSegments(msgspec.Struct, frozen=True):
    """`Segments` as one process saves them for the next. Raises ValueError where lengths differ."""

    keys: bytes
    """The keys, 8 bytes each, little-endian; `segments` has the segment of each in the same form."""
    segments: bytes
    positions: bytes
    """The position of each key in its segment, a byte each."""

    def __post_init__(self) -> None:
        if not WORD_BYTES * len(self.positions) == len(self.keys) == len(self.segments):
            raise ValueError("the arrays of segments differ in length")


class Segments:
    """The segment of each key of a rank, learned as chains are followed.

    A key is forgotten when the rank no longer holds it anywhere; a block chained to it later would have
    no parent by then (`indexer.resolve.resolver`).
    """

    def __init__(self) -> None:
        # Two tables of integers take half the bytes of one table of pairs, and need no loop to read.
        self._segments: dict[int, int] = {}
        self._positions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, key: int) -> bool:
        return key in self._segments

    def chained(self, parent: int, keys: Sequence[int]) -> None:
        """Learn the segments of keys chained to `parent`: a known key, or a root."""
        segment = self._segments.get(parent, 0)
        position = self._positions.get(parent, SEGMENT - 1)
        for key in keys:
            position += 1
            if position == SEGMENT:
                segment, position = key, 0
            self._segments[key] = segment
            self._positions[key] = position

    def of_all(self, keys: Collection[int]) -> "array[int]":
        """Return the segment of each key; the key itself where its chain is not known."""
        return array("Q", map(self._segments.get, keys, keys))

    def forget(self, key: int) -> None:
        self._segments.pop(key, None)
        self._positions.pop(key, None)

    def clear(self) -> None:
        self._segments.clear()
        self._positions.clear()

    def save(self) -> SavedSegments:
        return SavedSegments(
            keys=pack_words(self._segments),
            segments=pack_words(self._segments.values()),
            positions=bytes(self._positions.values()),
        )

    def restore(self, saved: SavedSegments) -> None:
        keys = unpack_words(saved.keys)
        self._segments = dict(zip(keys, unpack_words(saved.segments), strict=True))
        self._positions = dict(zip(keys, saved.positions, strict=True))
