"""A bucket in plain Python: the scripts `apply`, `fence` and `purge`, written as simply as possible."""

from collections.abc import Iterable, Iterator

from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.writer.calls import Status
from warmpath.lab.verify.structure import Bucket

Change = tuple[int, int, list[int], list[int]]
"""Segment, slot, added keys, gone keys."""
Blocks = dict[int, set[int]]
"""Block's key -> the slots that hold it."""


def found_under(claim: Claim, contents: Iterable[Blocks]) -> Iterator[tuple[SpotOf, int]]:
    """Yield what readers find of buckets' contents: a place of the claim, and a block that it holds."""
    places = {claim.slot(n): spot for n, spot in enumerate(claim.places) if spot is not None}
    for blocks in contents:
        for key, slots in blocks.items():
            for slot in slots & places.keys():
                yield places[slot], key


class BucketModel:
    """Blocks by segment. `most` records are packed; a segment with more is spilled."""

    def __init__(self, most: int = 512) -> None:
        self.most = most
        self.blocks: dict[int, Blocks] = {}
        self.spilled: set[int] = set()
        self.checkpoints: dict[bytes, tuple[int, int]] = {}

    def apply(
        self, field: bytes, token: int, before: int, changes: Iterable[Change]
    ) -> tuple[Status, int, int]:
        stored = self.checkpoints.get(field, (0, 0))
        if stored[0] > token:
            return Status.FENCED, *stored
        if stored != (token, before) or field not in self.checkpoints:
            again = stored[0] == token and stored[1] > before
            return Status.DUPLICATE if again else Status.GAP, *stored
        for segment, slot, added, gone in changes:
            self._change(segment, slot, added, gone)
        self.checkpoints[field] = token, before + 1
        return Status.APPLIED, token, before + 1

    def _change(self, segment: int, slot: int, added: list[int], gone: list[int]) -> None:
        held = self.blocks.setdefault(segment, {})
        for key in added:
            held.setdefault(key, set()).add(slot)
        for key in gone:
            held.get(key, set()).discard(slot)
        self._tidy(segment)
        if len(held) > self.most:
            self.spilled.add(segment)

    def fence(self, field: bytes, token: int) -> tuple[Status, int, int]:
        stored = self.checkpoints.get(field, (0, 0))
        if stored[0] >= token:
            return Status.FENCED if stored[0] > token else Status.DUPLICATE, *stored
        self.checkpoints[field] = token, 0
        return Status.APPLIED, token, 0

    def purge(self, dead: set[int]) -> None:
        for segment, held in list(self.blocks.items()):
            for slots in held.values():
                slots.difference_update(dead)
            self._tidy(segment)

    def _tidy(self, segment: int) -> None:
        held = self.blocks[segment]
        for key in [key for key, slots in held.items() if not slots]:
            del held[key]
        if not held:
            del self.blocks[segment]
            self.spilled.discard(segment)

    @property
    def all_blocks(self) -> Blocks:
        return {key: slots for blocks in self.blocks.values() for key, slots in blocks.items()}

    def contents(self) -> Bucket:
        checkpoints = {field: b"%d:%d" % at for field, at in self.checkpoints.items()}
        return Bucket(self.blocks, self.spilled, checkpoints)
