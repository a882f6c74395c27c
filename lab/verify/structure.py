"""Checks that the buckets have the structure that this version writes.

Buckets change while they are read, so a fault is looked at again and counts only if it is found each
time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from warmpath.cli.index.access import Access, PodSeen, living_of
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment_value import (
    MOST_RECORDS,
    BadSegmentError,
    Packed,
    decode,
    spilled_blocks,
)
from warmpath.indexer.shared.layout.names import BORN, WRITES, checkpoint
from warmpath.indexer.shared.layout.pages import CHECKPOINT, ask_page, read_checkpoint, read_page
from warmpath.indexer.shared.layout.record import Living


class DamageError(Exception):
    """A bucket contradicts itself."""


Holders = dict[int, set[int]]
"""The slots that hold each key."""


def holders(packed: Packed) -> dict[int, set[int]]:
    """Return the slots that hold each key."""
    rows = np.unpackbits(packed.bits, axis=1, count=len(packed.slots), bitorder="little")
    slots = packed.slots
    return {
        key: {slots[column] for column in np.flatnonzero(row).tolist()}
        for key, row in zip(packed.keys.tolist(), rows, strict=True)
    }


@dataclass(slots=True)
class Bucket:
    """The contents of a bucket."""

    segments: dict[int, Holders] = field(default_factory=dict)
    spilled: set[int] = field(default_factory=set)
    """Segments whose blocks have fields of their own."""
    checkpoints: dict[bytes, bytes] = field(default_factory=dict)
    """Each writer's checkpoint, by its field."""


def read_bucket(fields: Mapping[bytes, bytes], *, most: int = MOST_RECORDS) -> Bucket:
    """Return the contents of a bucket from all of its fields.

    `most` is the most blocks that a packed segment may have. Raises DamageError where a field
    contradicts itself or another one: a writer of this version never leaves such a bucket, not even
    between two writes.
    """
    bucket = Bucket()
    counts: dict[int, int] = {}
    blocks: dict[int, Holders] = {}
    for name, value in fields.items():
        if name in {BORN, WRITES}:
            continue
        if name.startswith(CHECKPOINT):
            bucket.checkpoints[name] = value
        elif len(name) == WORD_BYTES:
            segment = _word(name)
            count = _spilled(name, value)
            if count is None:
                bucket.segments[segment] = _checked(name, value, most)
            else:
                counts[segment] = count
        elif len(name) == 2 * WORD_BYTES:
            one = _checked(name, value, 1)
            if one.keys() != {_word(name[WORD_BYTES:])}:
                raise DamageError(f"field {name.hex()} holds another block than it names")
            blocks.setdefault(_word(name[:WORD_BYTES]), {}).update(one)
        else:
            raise DamageError(f"field {name[:40].hex()} does not belong to the index")
    if counts != {segment: len(held) for segment, held in blocks.items()}:
        raise DamageError("a spilled segment has more or fewer blocks than its marker says")
    bucket.segments |= blocks
    bucket.spilled = set(blocks)
    return bucket


def _word(packed: bytes) -> int:
    return int.from_bytes(packed, "little")


def _spilled(name: bytes, value: bytes) -> int | None:
    try:
        return spilled_blocks(value)
    except BadSegmentError as error:
        raise DamageError(f"field {name.hex()}: {error}") from error


def _checked(name: bytes, value: bytes, most: int) -> Holders:
    try:
        packed = decode(value)
    except BadSegmentError as error:
        raise DamageError(f"field {name.hex()}: {error}") from error
    held = holders(packed)
    if len(held) != len(packed.keys) or len(set(packed.slots)) != len(packed.slots):
        raise DamageError(f"field {name.hex()} names a block or a slot twice")
    if not all(held.values()):
        raise DamageError(f"field {name.hex()} keeps a block without holders")
    if set().union(*held.values()) != set(packed.slots):
        raise DamageError(f"field {name.hex()} keeps a slot without blocks")
    if len(held) > most:
        raise DamageError(f"field {name.hex()} has {len(held)} blocks, more than {most}")
    return held


PAGE = 256
READINGS = 5
"""Number of successive readings in which a fault must be found."""


@dataclass(slots=True)
class Structure:
    """The result of the check."""

    problems: list[str]
    pods: set[str] = field(default_factory=set)
    """Pods that have checkpoints."""
    dead: int | None = 0
    """Entries that wait for the sweep; None: not known, as a record was not read."""
    unknown: int | None = 0
    """Entries whose place the pod's record does not name yet; None: not known."""
    unread: str = ""


async def check_structure(access: Access) -> Structure:
    """Read every bucket whose node answers."""
    found = Structure([])
    for number in access.buckets:
        problem = ""
        for _ in range(READINGS):
            try:
                bucket = read_bucket(await _fields(access, number, found))
                _check_segments(access, number, bucket)
                # Read after the content, so that each claim with content has its record by now.
                pods = await access.pods(sorted(found.pods))
                _check_checkpoints(pods, bucket)
            except (DamageError, ValueError) as error:
                problem = str(error)
                continue
            _count(bucket, living_of(pods), access.unread(pods), found)
            problem = ""
            break
        if problem:
            found.problems.append(f"bucket {number}: {problem}")
    return found


async def _fields(access: Access, number: int, found: Structure) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    cursor = b"0"
    while cursor:
        (reply,) = await access.ask([ask_page(access.names, number, cursor, PAGE)])
        page = read_page(reply)
        found.pods |= page.checkpoints.keys()
        fields |= page.values | page.strange
        fields |= {checkpoint(pod): value for pod, value in page.checkpoints.items()}
        cursor = page.cursor
    return fields


def _check_segments(access: Access, number: int, bucket: Bucket) -> None:
    for segment in bucket.segments:
        if access.names.bucket_of(segment) != number:
            raise DamageError(f"segment {segment:016x} lies in another bucket than its own")


def _check_checkpoints(pods: Mapping[str, PodSeen], bucket: Bucket) -> None:
    """Raise DamageError or ValueError if a bucket lacks a valid pod's checkpoint."""
    stored = {field: read_checkpoint(value)[0] for field, value in bucket.checkpoints.items()}
    for name, seen in pods.items():
        record = seen.record
        expected = record.token if record and record.sound else None
        there = stored.get(checkpoint(name), 0)
        if expected is not None and there < expected:
            raise DamageError(
                f"pod {name} is said to be sound, and its writer does not have the bucket "
                f"(its checkpoint is of claim {there}, not {expected})"
            )


def _count(bucket: Bucket, living: Living, unread: str, found: Structure) -> None:
    sets = chain.from_iterable(held.values() for held in bucket.segments.values())
    dead = unknown = 0
    for slot, count in Counter(chain.from_iterable(sets)).items():
        place = living.place(slot)
        if place is None:
            dead += count
        elif place.spot is None:
            unknown += count
    if dead and unread:
        found.dead = found.unknown = None
        found.unread = unread
    if found.dead is not None and found.unknown is not None:
        found.dead += dead
        found.unknown += unknown
