"""Counts the content of the buckets."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Survey:
    """Counts of the content. Changes that writers make meanwhile are counted in part."""

    packed: int = 0
    """Segments with one value."""
    spilled: int = 0
    """Segments whose blocks have fields of their own."""
    blocks: int = 0
    entries: int = 0
    """(block, slot) pairs."""
    size: int = 0
    """Bytes of the names and values of all fields."""
    by_slot: Counter[int] = field(default_factory=Counter)
    pods: set[str] = field(default_factory=set)
    """Pods that have checkpoints."""
    odd: int = 0
    """Number of fields that cannot be decoded."""

    def take(self, name: bytes, value: bytes) -> None:
        """Count a field of segments. Raises BadSegmentError."""
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
    found, seen = Survey(), (-1, set[bytes]())
    async for bucket, page in pages(access):
        if bucket != seen[0]:
            seen = bucket, set()
        new = {name: value for name, value in page.values.items() if name not in seen[1]}
        seen[1].update(new)
        found.pods |= page.checkpoints.keys()
        found.odd += len(page.strange)
        for fields in (page.checkpoints, page.strange, new):
            found.size += sum(len(name) + len(value) for name, value in fields.items())
        for name, value in new.items():
            try:
                found.take(name, value)
            except BadSegmentError:
                found.odd += 1
    return found
