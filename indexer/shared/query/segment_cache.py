"""A bounded copy of the parts of the index that were read, and of when each was read. Sans-I/O.

A part is a field of a bucket as it was read: a segment, or a wanted block of a spilled segment. A field
that Redis did not have is a part too: nobody holds its blocks.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.keys.segment_value import is_spilled
from warmpath.indexer.shared.query.lookup import block_fields, spans, stretches

ENTRY_BYTES = 500
"""The bytes of a part besides its value, estimated on the high side: three dict entries, name, time."""

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy's answer about a prompt."""

    stretches: list[Stretch]
    read_at: float
    """When the oldest of its parts was read; infinite where none was."""
    missing: int
    """How many blocks are in no part that was read."""
    failed: list[Exception]
    """The errors of malformed values; their blocks do not count as missing."""


class SegmentCache:
    """Holds at most `max_bytes`, by estimate; the least recently used part goes first.

    Belongs to one thread. Times are seconds of a monotonic clock.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        """Segments that `lacking` was asked for and that had been read recently enough."""
        self.misses = 0
        self.evicted = 0
        self._values: dict[bytes, bytes | None] = {}
        """By field, the least recently used first."""
        self._read_at: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, field: bytes, value: bytes | None, now: float) -> None:
        """Keep a field's value; None where the bucket has no such field."""
        if field in self._values:
            self._remove(field)
        self._values[field] = value
        self._read_at[field] = now
        self.bytes += _bytes_of(value)
        while self.bytes > self.max_bytes:
            self._remove(next(iter(self._values)))
            self.evicted += 1

    def _remove(self, field: bytes) -> None:
        self.bytes -= _bytes_of(self._values.pop(field))
        del self._read_at[field]

    def lacking(self, keys: Keys, since: float) -> list[int]:
        """Return the segments of a prompt that were not read after `since`, by first block.

        `keys` are the keys of the whole prompt. A spilled segment counts as read if all of its blocks
        among `keys` were read.
        """
        packed = np.asarray(keys, "<u8").tobytes()
        read_at = self._read_at.get
        starts: list[int] = []
        segments = 0
        for segment, start, stop in spans(packed):
            segments += 1
            at = read_at(segment, -inf)
            if at >= since and is_spilled(self._values.get(segment)):
                fields = block_fields(packed, segment, start, stop)
                at = min(read_at(field, -inf) for field in fields)
            if at < since:
                starts.append(start)
        self.misses += len(starts)
        self.hits += segments - len(starts)
        return starts

    def match(self, keys: Keys, *, leading: bool = False) -> Copied:
        """Return who holds which of a prompt's blocks, by the copy.

        With `leading`, age and missing blocks are those of the parts up to the first block that nobody
        holds.
        """
        packed = np.asarray(keys, "<u8").tobytes()
        found, failed = stretches(keys, self._values)
        end = _reach(found) if leading else len(keys)
        read_at, missing = inf, 0
        for segment, start, stop in spans(packed):
            if start > end:
                break
            at = self._touch(segment)
            if at is None:
                missing += stop - start
                continue
            read_at = min(read_at, at)
            if is_spilled(self._values.get(segment)):
                for field in block_fields(packed, segment, start, stop):
                    at = self._touch(field)
                    if at is None:
                        missing += 1
                    else:
                        read_at = min(read_at, at)
        return Copied(found, read_at, missing, failed)

    def _touch(self, field: bytes) -> float | None:
        """Make a part the most recently used; return when it was read, None where it never was."""
        at = self._read_at.get(field)
        if at is not None:
            self._values[field] = self._values.pop(field)
        return at


def _reach(found: list[Stretch]) -> int:
    """Return the first block that nobody holds."""
    end = 0
    for _, start, stop in sorted(found, key=lambda one: one.start):
        if start > end:
            break
        end = max(end, stop)
    return end


def _bytes_of(value: bytes | None) -> int:
    return ENTRY_BYTES + len(value or b"")
