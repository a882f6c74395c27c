"""Stores whose parent is not known, kept aside until it turns up.

A consumer that missed an event meets children of blocks that it never heard of. They have no key, so
nothing is claimed for them; but the parent may be announced again later, and with its key theirs are
known too. What waits is bounded in bytes; past the bound the oldest goes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from indexer.engines.event import EngineHash, Stored
from indexer.index import BrokenInvariantError

BLOCK_BYTES = 200
"""What one waiting block costs beside its tokens, reckoned on the high side."""


@dataclass(eq=False, slots=True)
class Orphan:
    """One store that waits, and which of its blocks were removed meanwhile."""

    event: Stored
    gone: set[int] = field(default_factory=set)
    """Positions in the event's hashes."""

    @property
    def size(self) -> int:
        """What it costs, bytes."""
        return len(self.event.tokens or b"") + BLOCK_BYTES * len(self.event.hashes)


class Orphans:
    """Waiting stores, by parent and by name. `max_bytes` bounds them."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self.dropped = 0
        """Blocks that were let go for want of room."""
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[Orphan, None] = OrderedDict()
        self._by_parent: dict[EngineHash, list[Orphan]] = {}
        self._by_name: dict[EngineHash, list[Orphan]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, event: Stored) -> None:
        """Let a store wait for its parent."""
        assert event.parent is not None
        orphan = Orphan(event)
        if orphan.size > self._max_bytes:
            self.dropped += len(event.hashes)
            return
        while self.bytes + orphan.size > self._max_bytes:
            oldest = next(iter(self._waiting))
            self._forget(oldest)
            self.dropped += len(oldest.event.hashes) - len(oldest.gone)
        self.bytes += orphan.size
        self._waiting[orphan] = None
        self._by_parent.setdefault(event.parent, []).append(orphan)
        for name in dict.fromkeys(event.hashes):
            self._by_name.setdefault(name, []).append(orphan)

    def of(self, parent: EngineHash) -> list[Orphan]:
        """Take out what waits for this parent, oldest first."""
        found = list(self._by_parent.get(parent, ()))
        for orphan in found:
            self._forget(orphan)
        return found

    def remove(self, removed: EngineHash, tier: str, group: int) -> bool:
        """Take note that one copy of a block is gone; False where none waits."""
        for orphan in self._by_name.get(removed, ()):
            event = orphan.event
            if event.tier != tier or event.group != group:
                continue
            for position, name in enumerate(event.hashes):
                if name == removed and position not in orphan.gone:
                    orphan.gone.add(position)
                    if len(orphan.gone) == len(event.hashes):
                        self._forget(orphan)
                    return True
        return False

    def clear(self) -> None:
        """Let everything go."""
        self._waiting.clear()
        self._by_parent.clear()
        self._by_name.clear()
        self.bytes = 0

    def _forget(self, orphan: Orphan) -> None:
        del self._waiting[orphan]
        self.bytes -= orphan.size
        assert orphan.event.parent is not None
        _take(self._by_parent, orphan.event.parent, orphan)
        for name in dict.fromkeys(orphan.event.hashes):
            _take(self._by_name, name, orphan)

    def check(self) -> None:
        """Raise BrokenInvariantError where bytes or tables disagree, or the bound is broken."""
        if self.bytes != sum(orphan.size for orphan in self._waiting):
            raise BrokenInvariantError("the waiting bytes do not add up")
        if self.bytes > self._max_bytes:
            raise BrokenInvariantError("more waits than may")
        waiting = set(self._waiting)
        for table in (self._by_parent, self._by_name):
            if {orphan for found in table.values() for orphan in found} != waiting:
                raise BrokenInvariantError("a table of waiting stores disagrees with the others")


def _take(table: dict[EngineHash, list[Orphan]], name: EngineHash, orphan: Orphan) -> None:
    found = table[name]
    found.remove(orphan)
    if not found:
        del table[name]
