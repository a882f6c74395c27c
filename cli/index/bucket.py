"""Reads all fields of one bucket together and checks that they agree."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmpath.indexer.keys.segment_value import (
    MOST_RECORDS,
    BadSegmentError,
    decode,
    holders,
    spilled_blocks,
)
from warmpath.indexer.keys.word import WORD_BYTES
from warmpath.indexer.shared.layout.names import BORN, WRITES
from warmpath.indexer.shared.layout.pages import CHECKPOINT
from warmpath.process.invariant import BrokenInvariantError

Holders = dict[int, set[int]]
"""The slots that hold each key."""


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

    `most` is the most blocks that a packed segment may have. Raises BrokenInvariantError where a field
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
                raise BrokenInvariantError(f"field {name.hex()} holds another block than it names")
            blocks.setdefault(_word(name[:WORD_BYTES]), {}).update(one)
        else:
            raise BrokenInvariantError(f"field {name[:40].hex()} does not belong to the index")
    if counts != {segment: len(held) for segment, held in blocks.items()}:
        raise BrokenInvariantError(
            "a spilled segment has more or fewer blocks than its marker says"
        )
    bucket.segments |= blocks
    bucket.spilled = set(blocks)
    return bucket


def _word(packed: bytes) -> int:
    return int.from_bytes(packed, "little")


def _spilled(name: bytes, value: bytes) -> int | None:
    try:
        return spilled_blocks(value)
    except BadSegmentError as error:
        raise BrokenInvariantError(f"field {name.hex()}: {error}") from error


def _checked(name: bytes, value: bytes, most: int) -> Holders:
    try:
        packed = decode(value)
    except BadSegmentError as error:
        raise BrokenInvariantError(f"field {name.hex()}: {error}") from error
    held = holders(packed)
    if len(held) != len(packed.keys) or len(set(packed.slots)) != len(packed.slots):
        raise BrokenInvariantError(f"field {name.hex()} names a block or a slot twice")
    if not all(held.values()):
        raise BrokenInvariantError(f"field {name.hex()} keeps a block without holders")
    if set().union(*held.values()) != set(packed.slots):
        raise BrokenInvariantError(f"field {name.hex()} keeps a slot without blocks")
    if len(held) > most:
        raise BrokenInvariantError(f"field {name.hex()} has {len(held)} blocks, more than {most}")
    return held
