"""A look-up in the shared index, without sockets: which fields to read, and who holds what by them.

One HMGET reads each bucket, all in one round trip. Segments where very many prompts diverge are spilled;
their wanted blocks take a second round trip.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys import segment_value
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.keys.segment_value import BadSegmentError
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim

Keys = NDArray[np.uint64]
ENTRY_BYTES = 500
"""The bytes of a part besides its value, estimated on the high side: three dict entries, name, time."""
Values = Mapping[bytes, bytes | None]
"""The values of fields, which are named as in their bucket; None for a field that is not there."""


def rounds(
    names: KeyNames, keys: Sequence[int] | Keys, values: Values
) -> Iterator[dict[int, list[bytes]]]:
    """Yield, for each of one or two round trips, the fields to read, by their bucket's number.

    `keys` are a prompt's. The caller has to put what was read into `values` before the next round: None
    for a field that is not there.
    """
    packed = np.asarray(keys, "<u8").tobytes()
    yield _by_bucket(names, (segment for segment, _, _ in spans(packed)))
    wanted: dict[bytes, None] = {}
    for segment, start, stop in spans(packed):
        if segment_value.is_spilled(values.get(segment)):
            wanted |= dict.fromkeys(block_fields(packed, segment, start, stop))
    if wanted:
        yield _by_bucket(names, wanted)


def _by_bucket(names: KeyNames, fields: Iterable[bytes]) -> dict[int, list[bytes]]:
    by_bucket: dict[int, list[bytes]] = {}
    for field in fields:
        segment = int.from_bytes(field[:WORD_BYTES], "little")
        by_bucket.setdefault(names.bucket_of(segment), []).append(field)
    return by_bucket


def spans(keys: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield each segment of a prompt's packed keys, its first block and its end, past its last block."""
    blocks = len(keys) // WORD_BYTES
    for start in range(0, blocks, SEGMENT):
        stop = min(start + SEGMENT, blocks)
        yield keys[start * WORD_BYTES : start * WORD_BYTES + WORD_BYTES], start, stop


def block_fields(keys: bytes, segment: bytes, start: int, stop: int) -> list[bytes]:
    """Return the fields that blocks of a prompt's packed keys have where their segment is spilled."""
    return [
        segment + keys[at : at + WORD_BYTES]
        for at in range(start * WORD_BYTES, stop * WORD_BYTES, WORD_BYTES)
    ]


Part = tuple[int, int, bytes | None]
"""The first block, the end, and the packed value with the holders of the blocks between."""


def stretches(keys: Keys, values: Values) -> tuple[list[Stretch], list[Exception]]:
    """Return who holds which of `keys` according to `values`, and the errors of malformed values.

    Where a field is malformed, or not in `values`, nobody counts as holding its blocks.
    """
    # The library imports this module, and its base install has no Numba.
    from warmpath.indexer.compiled.segments import stretches_of  # noqa: PLC0415

    parts = _parts(keys.tobytes(), values)
    found, bad = stretches_of(keys, parts)
    return [Stretch(*row) for row in found], [_problem(parts[number][2]) for number in bad]


def _parts(keys: bytes, values: Values) -> list[Part]:
    parts: list[Part] = []
    for segment, start, stop in spans(keys):
        value = values.get(segment)
        if segment_value.is_spilled(value):
            fields = block_fields(keys, segment, start, stop)
            parts += [(at, at + 1, values.get(field)) for at, field in enumerate(fields, start)]
        else:
            parts.append((start, stop, value))
    return parts


def _problem(value: bytes | None) -> BadSegmentError:
    try:
        segment_value.decode(value or b"")
    except BadSegmentError as error:
        return error
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy's answer about a prompt."""

    stretches: list[Stretch]
    read_at: float
    """When the oldest part in the answer was read; infinite where none was."""
    missing: int
    """How many blocks are in no part that was read."""
    failed: list[Exception]
    """The errors of malformed values; their blocks do not count as missing."""


class SegmentCache:
    """A bounded copy of the parts of the index that were read, and of when each was read.

    A part is a field of a bucket as it was read: a segment, or a wanted block of a spilled segment. A
    field that Redis did not have is a part too: nobody holds its blocks.

    It holds at most `max_bytes`, by estimate; the least recently used part goes first. Belongs to one
    thread. Times are seconds of a monotonic clock.
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
            if at >= since and segment_value.is_spilled(self._values.get(segment)):
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
            fields = {segment: stop - start}
            if segment_value.is_spilled(self._values.get(segment)):
                fields |= dict.fromkeys(block_fields(packed, segment, start, stop), 1)
            for field, blocks in fields.items():
                at = self._touch(field)
                if at is None:
                    missing += blocks
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


class Places:
    """The places of all pods' claims. A rank that loses a place or has a new claim begins a new life."""

    def __init__(self) -> None:
        self.life_changes = 0
        """Grows whenever any rank's life changes."""
        self._claims: dict[str, Claim] = {}
        """The last claim of each pod, kept also while the pod holds nothing."""
        self._slots_of: dict[str, list[int]] = {}
        self._places: dict[int, Place] = {}
        self._lives: dict[RankName, int] = {}

    def place(self, slot: int) -> Place | None:
        return self._places.get(slot)

    def life(self, pod: str, rank: int) -> int:
        """Return a number that changes when a rank's cache is reset or its pod is claimed again."""
        return self._lives.get(RankName(pod, rank), 0)

    def take(self, pod: str, claim: Claim | None) -> bool:
        """Take a pod's claim; None where the pod holds nothing that this router can use.

        Returns whether the claim is a new one, under which no block was read yet.
        """
        last = self._claims.get(pod)
        is_new = claim is not None and (last is None or last.base != claim.base)
        if claim is not None and claim != last:
            if last is not None:
                self._count_lives(pod, last, claim)
            self._claims[pod] = claim
        elif (claim is not None) == (pod in self._slots_of):
            return False
        self._drop(pod)
        if claim is not None:
            slots = self._slots_of[pod] = []
            for number, spot in enumerate(claim.places):
                if spot is not None:
                    slots.append(slot := claim.slot(number))
                    epoch = self.life(pod, spot.rank)
                    self._places[slot] = Place(pod, spot.rank, spot.tier, epoch, spot.group)
        return is_new

    def _count_lives(self, pod: str, last: Claim, claim: Claim) -> None:
        before, after = (
            {(spot.rank, one.slot(number)) for number, spot in enumerate(one.places) if spot}
            for one in (last, claim)
        )
        ranks = {rank for rank, _ in before - after}
        if last.base != claim.base:
            ranks = set(range(max(last.ranks, claim.ranks)))
        for rank in ranks:
            self._lives[RankName(pod, rank)] = self.life(pod, rank) + 1
            self.life_changes += 1

    def _drop(self, pod: str) -> None:
        for slot in self._slots_of.pop(pod, ()):
            # Two pods never have the same base, unless a record was copied by hand.
            self._places.pop(slot, None)

    def forget(self, pod: str) -> None:
        self._drop(pod)
        self._claims.pop(pod, None)
        for name in [name for name in self._lives if name[0] == pod]:
            del self._lives[name]
            self.life_changes += 1
