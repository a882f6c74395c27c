"""Events of a cache that may have a block several times, as an engine tells them that keeps each once.

vLLM's block pool computes a block anew under some requests and announces each copy. SGLang's tree has
one page for one content: it announces the first copy and the end of the last.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from simworker.events.wire_event import Cleared, Removed, Stored, WireEvent


class KeptOnce:
    """Counts the copies in one rank's cache, by digest, medium and group."""

    def __init__(self) -> None:
        self._copies: Counter[tuple[bytes, str | None, int]] = Counter()

    def told(self, events: Sequence[WireEvent]) -> list[WireEvent]:
        """Return what is told of events; stores keep their blocks' order and parents."""
        return [told for event in events for told in self._told(event)]

    def _told(self, event: WireEvent) -> Iterator[WireEvent]:
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
    """Return a store of some of its blocks."""
    size = event.block_size
    return replace(
        event,
        block_hashes=event.block_hashes[start:stop],
        parent_block_hash=event.block_hashes[start - 1] if start else event.parent_block_hash,
        token_ids=event.token_ids[start * size : stop * size],
        extra_keys=event.extra_keys[start:stop] if event.extra_keys else event.extra_keys,
    )
