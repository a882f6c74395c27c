"""Stores whose parent block is not known; they wait here until the parent is announced.

A router that missed an event receives children of blocks that it does not know. Without the parent's
key they have no keys, so the rank does not seem to hold them; but the parent may be announced again
later, and then they get theirs. The bytes of waiting stores are bounded; past the bound the oldest goes.
They also count in the bytes of the index that all ranks share (`AllOrphans`), and are let go before any
held block is given up.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from warmpath.indexer.engines.event import EngineHash, Moved, Stored

STORE_BYTES = 900
"""A high estimate of a waiting store's bytes without its blocks."""
BLOCK_BYTES = 200
"""A high estimate of the bytes of each block in a waiting store, without its tokens."""


@dataclass(eq=False, slots=True)
class Orphan:
    """One store that waits for its parent."""

    event: Stored
    gone: set[int] = field(default_factory=set)
    """Positions, in the event's hashes, of blocks that were removed meanwhile."""
    size: int = field(init=False)
    """The store's estimated bytes."""

    def __post_init__(self) -> None:
        event = self.event
        self.size = (
            STORE_BYTES
            + len(event.tokens or b"")
            + BLOCK_BYTES * len(event.hashes)
            + sum(len(extra) for extra in event.extras or () if extra)
        )


class AllOrphans:
    """All ranks' orphans. `has_room(n)` returns whether `n` more bytes fit into the index."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self.bytes = 0
        self.has_room = has_room
        self._ranks: dict[Orphans, None] = {}

    def note(self, orphans: "Orphans", more: int) -> None:
        """Count `more` bytes of a rank's orphans, negative for fewer."""
        self.bytes += more
        if orphans:
            self._ranks[orphans] = None
        else:
            self._ranks.pop(orphans, None)

    def let_go(self) -> None:
        """Let all orphans of all ranks go, to make room."""
        for orphans in list(self._ranks):
            orphans.let_go()


class Orphans:
    """The stored blocks of one rank that wait until the engine announces their parent.

    At most `max_bytes` wait; `waiting` counts the bytes of all ranks' orphans. `lost` is called when
    blocks were dropped because there was no room.
    """

    def __init__(
        self,
        max_bytes: int,
        waiting: AllOrphans | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.bytes = 0
        self.dropped = 0
        """Blocks that were dropped because there was no room."""
        self._max_bytes = max_bytes
        self._shared = AllOrphans(lambda _: True) if waiting is None else waiting
        self._lost = lost
        self._waiting: OrderedDict[Orphan, None] = OrderedDict()
        self._by_parent: dict[EngineHash, list[Orphan]] = {}
        self._by_name: dict[EngineHash, list[Orphan]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, event: Stored) -> None:
        assert event.parent is not None
        orphan = Orphan(event)
        while self._waiting and self.bytes + orphan.size > self._max_bytes:
            self._drop(next(iter(self._waiting)))
        if orphan.size > self._max_bytes or not self._shared.has_room(orphan.size):
            self.dropped += len(event.hashes)
            self._lost()
            return
        self._waiting[orphan] = None
        self._note(orphan.size)
        self._by_parent.setdefault(event.parent, []).append(orphan)
        for name in dict.fromkeys(event.hashes):
            self._by_name.setdefault(name, []).append(orphan)

    def are_waiting_for(self, parent: EngineHash) -> bool:
        return parent in self._by_parent

    def awaited(self) -> list[EngineHash]:
        return list(self._by_parent)

    def of(self, parent: EngineHash) -> list[Orphan]:
        """Take out the stores that wait for this parent, oldest first."""
        found = list(self._by_parent.get(parent, ()))
        for orphan in found:
            self._forget(orphan)
        return found

    def remove(self, removed: EngineHash, tier: str, group: int) -> bool:
        """Record that one copy of a block was removed; return False where no such copy waits."""
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

    def is_waiting(self, name: EngineHash, tier: str, group: int) -> bool:
        """Return whether a store of this block waits, in this tier and group."""
        stores = (orphan.event for orphan in self._by_name.get(name, ()))
        return any((event.tier, event.group) == (tier, group) for event in stores)

    def move(self, event: Moved) -> bool:
        """Move a waiting block to another tier; return False if no store of this block alone waits.

        Engines that move blocks store each by itself (`indexer.engines.trtllm`).
        """
        moved = (event.hash,), event.source, event.group
        for orphan in self._by_name.get(event.hash, ()):
            stored = orphan.event
            if (stored.hashes, stored.tier, stored.group) == moved:
                self._forget(orphan)
                self.keep(replace(stored, tier=event.target))
                return True
        return False

    def clear(self) -> None:
        self._waiting.clear()
        self._by_parent.clear()
        self._by_name.clear()
        self._note(-self.bytes)

    def let_go(self) -> None:
        """Let every waiting store of the rank go, to make room."""
        for orphan in list(self._waiting):
            self._drop(orphan)

    def _drop(self, orphan: Orphan) -> None:
        self._forget(orphan)
        self.dropped += len(orphan.event.hashes) - len(orphan.gone)
        self._lost()

    def _note(self, more: int) -> None:
        self.bytes += more
        self._shared.note(self, more)

    def _forget(self, orphan: Orphan) -> None:
        del self._waiting[orphan]
        self._note(-orphan.size)
        assert orphan.event.parent is not None
        _take(self._by_parent, orphan.event.parent, orphan)
        for name in dict.fromkeys(orphan.event.hashes):
            _take(self._by_name, name, orphan)


def _take(table: dict[EngineHash, list[Orphan]], name: EngineHash, orphan: Orphan) -> None:
    found = table[name]
    found.remove(orphan)
    if not found:
        del table[name]
