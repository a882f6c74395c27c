"""A look-up in the shared index, without sockets: from keys to commands, from replies to stretches.

It sends one HMGET for each bucket, all in one round trip. Segments where very many prompts diverge
are spilled; their wanted blocks take a second round trip.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.keys import segment_value
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.keys.segment_value import BadSegmentError
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.lost_buckets import LIFE, Life
from warmpath.indexer.shared.redis.command import Command, Reply

Values = Mapping[bytes, bytes | None]
"""The values of fields, which are named as in their bucket; None for a field that is not there."""


class LookUp:
    """One look-up. Send `commands` and `feed` the replies; do the same with `more` until it is empty.

    `keys` are a prompt's, from its first block on.
    """

    def __init__(self, names: KeyNames, keys: Sequence[int] | NDArray[np.uint64]) -> None:
        self.values: dict[bytes, bytes | None] = {}
        """The values of all fields that were asked for so far; None also where the read failed."""
        self.lives: dict[int, Life] = {}
        """The life of each bucket in the last replies."""
        self.asked: dict[int, list[bytes]] = {}
        """The fields of each bucket in the commands that wait for their replies, in their order."""
        self._names = names
        self._packed = np.asarray(keys, "<u8").tobytes()

    def commands(self) -> list[Command]:
        return self._commands(segment for segment, _, _ in spans(self._packed))

    def more(self) -> list[Command]:
        """Return the commands of the second round trip, for blocks of spilled segments."""
        wanted: dict[bytes, None] = {}
        for segment, start, stop in spans(self._packed):
            if segment_value.is_spilled(self.values.get(segment)):
                wanted |= dict.fromkeys(block_fields(self._packed, segment, start, stop))
        return self._commands(field for field in wanted if field not in self.values)

    def _commands(self, fields: Iterable[bytes]) -> list[Command]:
        by_bucket: dict[int, list[bytes]] = {}
        for field in fields:
            segment = int.from_bytes(field[:WORD_BYTES], "little")
            by_bucket.setdefault(self._names.bucket_of(segment), []).append(field)
        self.asked = by_bucket
        bucket = self._names.bucket
        return [Command(("HMGET", bucket(number), *of, *LIFE)) for number, of in by_bucket.items()]

    def feed(self, replies: Sequence[Reply]) -> None:
        self.lives = {}
        for (bucket, fields), reply in zip(self.asked.items(), replies, strict=True):
            self.values.update(dict.fromkeys(fields))
            if isinstance(reply, list) and len(reply) == len(fields) + len(LIFE):
                *values, born, writes = reply
                self.lives[bucket] = born, writes
                self.values.update(zip(fields, values, strict=True))
        self.asked = {}


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


def stretches(keys: NDArray[np.uint64], values: Values) -> tuple[list[Stretch], list[Exception]]:
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
