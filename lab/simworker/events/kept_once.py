"""Turns events of a cache with copies of a block into those of an engine that keeps each block once.

vLLM's block pool may compute a block again for another request, and announces each copy. SGLang's tree
has one page for one content: it announces the first copy, and the removal of the last.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from warmpath.lab.simworker.events.wire_event import Cleared, Removed, Stored, WireEvent


class KeptOnce:
    """Counts the copies in one rank's cache, by digest, medium and group."""

    def __init__(self) -> None:
        self._copies: Counter[tuple[bytes, str | None, int]] = Counter()

    def announced(self, events: Sequence[WireEvent]) -> list[WireEvent]:
        """Return the events to announce; stores keep their blocks' order and parents."""
        return [kept for event in events for kept in self._announced(event)]

    def _announced(self, event: WireEvent) -> Iterator[WireEvent]:
        if isinstance(event, Cleared):
            self._copies.clear()
            yield event
        elif isinstance(event, Removed):
            gone = [digest for digest in event.block_hashes if self._remove(digest, event)]
            if gone:
                yield replace(event, block_hashes=gone)
        else:
            fresh = [self._add(digest, event) for digest in event.block_hashes]
            for is_fresh, run in groupby(range(len(fresh)), fresh.__getitem__):
                if is_fresh:
                    positions = list(run)
                    yield _part(event, positions[0], positions[-1] + 1)

    def _add(self, digest: bytes, event: Stored) -> bool:
        name = (digest, event.medium, event.group_idx or 0)
        self._copies[name] += 1
        return self._copies[name] == 1

    def _remove(self, digest: bytes, event: Removed) -> bool:
        name = (digest, event.medium, event.group_idx or 0)
        self._copies[name] -= 1
        if self._copies[name] > 0:
            return False
        return self._copies.pop(name) == 0


def _part(event: Stored, start: int, stop: int) -> Stored:
    """Return a stored event of some of the event's blocks."""
    size = event.block_size
    return replace(
        event,
        block_hashes=event.block_hashes[start:stop],
        parent_block_hash=event.block_hashes[start - 1] if start else event.parent_block_hash,
        token_ids=event.token_ids[start * size : stop * size],
        extra_keys=event.extra_keys[start:stop] if event.extra_keys else event.extra_keys,
    )
