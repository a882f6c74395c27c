"""A bucket in plain Python: the scripts `apply`, `fence` and `purge`, written as simply as possible."""

from collections.abc import Iterable

from warmpath.indexer.shared.layout.names import checkpoint
from warmpath.indexer.shared.writer.calls import Status
from warmpath.lab.verify.structure import Bucket

Change = tuple[int, int, list[int], list[int]]
"""Segment, slot, added keys, gone keys."""


class BucketModel:
    """Sets of slots by segment and key. `most` records are packed; a segment with more is spilled."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.segments: dict[int, dict[int, set[int]]] = {}
        self.spilled: set[int] = set()
        self.checkpoints: dict[str, tuple[int, int]] = {}

    def apply(
        self, pod: str, token: int, before: int, changes: Iterable[Change]
    ) -> tuple[Status, int, int]:
        if pod not in self.checkpoints:
            return Status.GAP, 0, 0
        stored_token, stored_count = self.checkpoints[pod]
        if stored_token > token:
            return Status.FENCED, stored_token, stored_count
        if (stored_token, stored_count) != (token, before):
            again = stored_token == token and stored_count > before
            return Status.DUPLICATE if again else Status.GAP, stored_token, stored_count
        for segment, slot, added, gone in changes:
            self._change(segment, slot, added, gone)
        self.checkpoints[pod] = token, before + 1
        return Status.APPLIED, token, before + 1

    def _change(self, segment: int, slot: int, added: list[int], gone: list[int]) -> None:
        held = self.segments.setdefault(segment, {})
        for key in added:
            held.setdefault(key, set()).add(slot)
        for key in gone:
            held.get(key, set()).discard(slot)
        self._tidy()
        if len(self.segments.get(segment, ())) > self.most:
            self.spilled.add(segment)

    def fence(self, pod: str, token: int) -> tuple[Status, int, int]:
        stored_token, stored_count = self.checkpoints.get(pod, (0, 0))
        if stored_token >= token:
            status = Status.FENCED if stored_token > token else Status.DUPLICATE
            return status, stored_token, stored_count
        self.checkpoints[pod] = token, 0
        return Status.APPLIED, token, 0

    def purge(self, dead: set[int]) -> None:
        for held in self.segments.values():
            for slots in held.values():
                slots.difference_update(dead)
        self._tidy()

    def _tidy(self) -> None:
        self.segments = {
            segment: kept
            for segment, held in self.segments.items()
            if (kept := {key: slots for key, slots in held.items() if slots})
        }
        self.spilled &= self.segments.keys()

    def contents(self) -> Bucket:
        return Bucket(
            {segment: dict(held) for segment, held in self.segments.items()},
            set(self.spilled),
            {checkpoint(pod): b"%d:%d" % at for pod, at in self.checkpoints.items()},
        )
