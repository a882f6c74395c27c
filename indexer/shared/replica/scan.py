"""One pass over all buckets, a page at a time, that collects the keys of some slots. Sans-I/O.

HSCAN returns every field that exists all the time from its first page to its last, as long as the
same server answers. Where the server may have changed, the pass begins the bucket again. A segment
that is spilled during the scan moves its blocks to new fields, which HSCAN may have passed already.
So the pass scans the fields of segments first, and where any segment is spilled, those of single
blocks afterwards: blocks that move later were read with their segment.
"""

from collections import deque
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment_value import decode, spilled_blocks
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.pages import Page, read_page
from warmpath.indexer.shared.redis.command import Command, CommandFailedError, Reply

FIELDS = 128
"""About how many fields a page has: mostly 100 KiB, at most 500 KiB."""
AT_ONCE = 8
"""Buckets that are read at the same time, a page of each in one round trip."""
SEGMENTS = b"?" * WORD_BYTES
BLOCKS = b"?" * 2 * WORD_BYTES

Keys = dict[int, list[NDArray[np.uint64]]]
"""The keys that each slot holds."""


class _Bucket:
    def __init__(self, number: int) -> None:
        self.number = number
        self.begin()

    def begin(self) -> None:
        self.fields = SEGMENTS
        self.cursor = b"0"
        self.disruptions: int | None = None
        """The number of disruptions before the first page was asked for; None until then."""
        self.has_spilled = False


class Scan:
    """A pass over all buckets. `wanted` are the slots whose keys are collected.

    `disruptions` is the value of `Redis.disruptions`: in `asked` before the commands are sent, in `take`
    after the replies came.
    """

    def __init__(self, names: KeyNames, wanted: Collection[int]) -> None:
        self._names = names
        self._wanted = frozenset(wanted)
        self._waiting = deque(_Bucket(number) for number in range(names.buckets))
        self._open: list[_Bucket] = []
        self.problem = ""
        """Why one of the last pages could not be read; empty where all were."""

    @property
    def is_over(self) -> bool:
        return not self._waiting and not self._open

    def asked(self, disruptions: int) -> list[Command]:
        while self._waiting and len(self._open) < AT_ONCE:
            self._open.append(self._waiting.popleft())
        commands = []
        for bucket in self._open:
            if bucket.disruptions is None:
                bucket.disruptions = disruptions
            name = self._names.bucket(bucket.number)
            words = "HSCAN", name, bucket.cursor, "MATCH", bucket.fields, "COUNT", FIELDS
            commands.append(Command(words))
        return commands

    def take(self, replies: Sequence[Reply], disruptions: int) -> list[Keys]:
        """Take the replies; return the keys on each page, some perhaps for a second time.

        A bucket that failed is begun again, and `problem` says why. Raises BadSegmentError.
        """
        self.problem = ""
        found = []
        for bucket, reply in zip(list(self._open), replies, strict=True):
            if isinstance(reply, CommandFailedError):
                self.problem = str(reply)
                bucket.begin()
            elif bucket.disruptions != disruptions:
                bucket.begin()
            else:
                found.append(self._page(bucket, read_page(reply)))
        return found

    def _page(self, bucket: _Bucket, page: Page) -> Keys:
        keys: Keys = {}
        for name, value in page.values.items():
            if len(name) == WORD_BYTES and spilled_blocks(value) is not None:
                bucket.has_spilled = True
                continue
            packed = decode(value)
            for column, slot in enumerate(packed.slots):
                if slot in self._wanted:
                    keys.setdefault(slot, []).append(packed.held(column))
        bucket.cursor = page.cursor or b"0"
        if not page.cursor:
            if bucket.fields == SEGMENTS and bucket.has_spilled:
                bucket.fields = BLOCKS
            else:
                self._open.remove(bucket)
        return keys
