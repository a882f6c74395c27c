"""Counts the content of the buckets."""

from collections import Counter
from collections.abc import AsyncIterator

import numpy as np

from warmpath.cli.index.access import Access
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment_value import BadSegmentError, decode, spilled_blocks
from warmpath.indexer.shared.layout.pages import Page, ask_page, read_page

PAGE = 256


async def pages(access: Access) -> AsyncIterator[tuple[int, Page]]:
    """Yield all pages of all reachable buckets by bucket number. A field may come twice."""
    for bucket in access.buckets:
        cursor, is_last = b"0", False
        while not is_last:
            (reply,) = await access.ask([ask_page(access.names, bucket, cursor, PAGE)])
            page = read_page(reply)
            cursor, is_last = page.cursor, page.is_last
            yield bucket, page


class Survey:
    """Counts of the content. Changes that writers make meanwhile are counted in part."""

    def __init__(self) -> None:
        self.packed = 0
        """Segments with one value."""
        self.spilled = 0
        """Segments whose blocks have fields of their own."""
        self.blocks = 0
        self.entries = 0
        """(block, slot) pairs."""
        self.bytes = 0
        """Bytes of the names and values of all fields."""
        self.by_slot: Counter[int] = Counter()
        self.pods: set[str] = set()
        """Pods that have checkpoints."""
        self.odd = 0
        """Number of fields that cannot be decoded."""
        self._bucket = -1
        self._seen: set[bytes] = set()

    def take(self, bucket: int, page: Page) -> None:
        """Count a page; those of one bucket come one after the other."""
        if bucket != self._bucket:
            self._bucket = bucket
            self._seen.clear()
        self.pods |= page.checkpoints.keys()
        self.odd += len(page.strange)
        for fields in (page.checkpoints, page.strange):
            self.bytes += sum(len(name) + len(value) for name, value in fields.items())
        for name, value in page.values.items():
            if name not in self._seen:
                self._seen.add(name)
                self.bytes += len(name) + len(value)
                try:
                    self._value(name, value)
                except BadSegmentError:
                    self.odd += 1

    def _value(self, name: bytes, value: bytes) -> None:
        if len(name) == WORD_BYTES and spilled_blocks(value) is not None:
            self.spilled += 1
            return
        packed = decode(value)
        self.packed += len(name) == WORD_BYTES
        self.blocks += len(packed.keys)
        columns = np.unpackbits(packed.bits, axis=1, count=len(packed.slots), bitorder="little")
        held = columns.sum(axis=0, dtype=np.int64).tolist()
        self.entries += sum(held)
        for slot, count in zip(packed.slots, held, strict=True):
            self.by_slot[slot] += count


async def survey(access: Access) -> Survey:
    """Read all buckets once."""
    found = Survey()
    async for bucket, page in pages(access):
        found.take(bucket, page)
    return found
