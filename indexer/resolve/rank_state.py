"""The state of one rank, to which its batches are applied in order; its form in pure Python."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Event, Tier
from warmpath.indexer.index.orphans import Orphans
from warmpath.indexer.resolve import groups as hits
from warmpath.indexer.resolve.change import Change, Spot
from warmpath.indexer.resolve.groups import Groups
from warmpath.indexer.resolve.resolver import Resolver, ResolverCounts
from warmpath.indexer.resolve.saved import SavedResolver


class Sink(Protocol):
    """The taker of a rank's changes: the slots of an index, or a publisher's journal."""

    def apply(self, change: Change) -> None:
        """Take one change."""

    def empty(self) -> None:
        """Empty the sink: the rank holds nothing now."""

    def blocks(self, layout: Layout) -> Mapping[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds."""


class RankState(Protocol):
    """The blocks that one rank holds, which its engine's events change.

    The test-suite of `tests/indexer/test_ingest.py` runs on each implementation.
    """

    @property
    def groups(self) -> Groups:
        """The rank's cache groups, with their layout; always the same object."""

    @property
    def counts(self) -> ResolverCounts:
        """The counts of the rank's events so far."""

    @property
    def orphans(self) -> Orphans:
        """The stores that wait for their parent."""

    def apply(self, events: Sequence[Event]) -> None:
        """Follow the events of one batch."""

    def scan(self, payloads: Sequence[bytes]) -> int:
        """Return how many batches, from the first one on, can be followed without being decoded."""

    def apply_scanned(self, capacity: int, *, heals: bool) -> bool:
        """Follow the scanned batches, up to one that may change the trust; return whether any are left.

        `capacity` is the cache's, in blocks; 0: not known. `heals`: the trust may become exact.
        """

    def doubt(self) -> None:
        """Doubt every block held now: missed events may have removed it. A later event may prove it."""

    def can_settle(self, capacity: int) -> bool:
        """Return whether all blocks cached at the last doubt must be gone or proven by now."""

    def settle(self) -> object:
        """Drop every name that is still in doubt."""

    def lost_room(self) -> None:
        """Handle a loss of blocks: there was no room for them, or their event was not readable."""

    def blocks_in_use(self) -> int | None:
        """Return how many blocks of the fastest tier are in use; None if groups have pools each."""

    def may_show_hits(self) -> bool:
        """Return whether blocks may be shown as held only because hits were announced as stores."""

    def give_up_excess(self) -> object:
        """Let the fastest tier hold only blocks that must be there even if some stores were hits."""

    def forget(self) -> object:
        """Forget the rank's names, orphans and groups, since its life has ended."""

    def close(self) -> None:
        """Drop all blocks of the rank, which holds none from now on."""

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds."""

    def held(self) -> Mapping[Spot, set[int]]:
        """Return the keys that each place holds."""

    @property
    def odd(self) -> int:
        """How many names are not kept in arrays."""

    @property
    def changes(self) -> int:
        """A number that changes with what `save` returns beside names in arrays."""

    def save(self, *, plain: bool = True) -> SavedResolver:
        """Return the state that a later process goes on from; without `plain`, no names in arrays."""

    def restore(self, saved: SavedResolver) -> object:
        """Go on from the state that another process saved; nothing may have been applied before."""


class PureState:
    """A rank's state in pure Python: a resolver, and a sink for its changes."""

    def __init__(self, resolver: Resolver, sink: Sink) -> None:
        self.resolver = resolver
        self.groups = resolver.groups
        self.counts = resolver.counts
        self.orphans = resolver.orphans
        self._sink = sink

    def apply(self, events: Sequence[Event]) -> None:
        self._pass_on(self.resolver.apply_all(events))

    def _pass_on(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._sink.apply(change)

    def scan(self, payloads: Sequence[bytes]) -> int:  # noqa: ARG002
        return 0

    def apply_scanned(self, capacity: int, *, heals: bool) -> bool:  # noqa: ARG002
        return False

    def doubt(self) -> None:
        self.resolver.doubt()

    def can_settle(self, capacity: int) -> bool:
        return self.resolver.can_settle(capacity)

    def settle(self) -> None:
        self._pass_on(self.resolver.settle())

    def lost_room(self) -> None:
        self.resolver.count_anew(all_in_doubt=False)

    def blocks_in_use(self) -> int | None:
        return hits.blocks_in_use(self.resolver.groups, self.resolver.names)

    def may_show_hits(self) -> bool:
        return hits.may_show_hits(self.resolver.groups, self.resolver.names)

    def give_up_excess(self) -> None:
        self._pass_on(self.resolver.give_up_excess())

    def forget(self) -> None:
        self.resolver.forget()
        self._sink.empty()

    def close(self) -> None:
        self.resolver.empty()
        self._sink.empty()

    def blocks(self) -> Mapping[Tier, int]:
        return self._sink.blocks(self.groups.layout)

    def held(self) -> Mapping[Spot, set[int]]:
        return self.resolver.names.held()

    @property
    def odd(self) -> int:
        return len(self.resolver.names.keys)

    @property
    def changes(self) -> int:
        return self.counts.stored_blocks + self.counts.removed_blocks

    def save(self, *, plain: bool = True) -> SavedResolver:  # noqa: ARG002  it has no arrays
        return self.resolver.save()

    def restore(self, saved: SavedResolver) -> None:
        self._pass_on(self.resolver.restore(saved))
