"""Engine hashes to keys, for one rank.

An engine names a block by a hash that is opaque to us. It announces the block's tokens and parent once,
when the block is stored, and afterwards only the name. The resolver keeps the keys of each live name, so
that it can chain a child to its parent and follow a removal. One file, since each rule reads all names.

One name may be announced several times: an engine keeps duplicates, several tiers hold copies, and each
cache group has its own. A place (tier and group) holds a name until it was removed there as often as it
was stored. Several names may also stand for one key. The resolver therefore returns changes of the keys
that a place *holds*: a key comes with its first name and goes with its last.

Doubt. Where an event was missed, any name known by then may be gone, and it counts as in doubt until a
later event proves it: a store of the name, or of a child (a request that stores a child holds its whole
prefix, except in a window). `settle` drops the names still in doubt, once the engine must have given all
blocks that were cached at that time to other content.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from warmpath.indexer.engines.cache_groups import WINDOW_KINDS, Group, Way
from warmpath.indexer.engines.event import Cleared, EngineHash, Event, Moved, Removed, Stored, Tier
from warmpath.indexer.index.orphans import AllOrphans, Orphans
from warmpath.indexer.keys.key import chain
from warmpath.indexer.keys.segment import Segments
from warmpath.indexer.resolve import groups as hits
from warmpath.indexer.resolve.change import Added, Change, Emptied, Gone, Spot
from warmpath.indexer.resolve.groups import Groups
from warmpath.indexer.resolve.names import Elsewhere, Names, Roots
from warmpath.indexer.resolve.saved import SavedResolver


@dataclass(slots=True)
class ResolverCounts:
    """The counts so far; the process exports them as metrics."""

    stored_blocks: int = 0
    removed_blocks: int = 0
    clears: int = 0
    parentless: int = 0
    """Stored blocks whose parent was not known, so that they had no key yet."""
    adopted: int = 0
    """Blocks counted in `parentless` whose parent was announced later."""
    unplaced: int = 0
    """Stored blocks that get no key: their event has no tokens and an unknown hash, or a block size
    that is not a multiple of the rank's."""
    unknown_removals: int = 0
    again: int = 0
    """Blocks stored where they were held already, although the engine keeps each once."""
    chunk_tokens: int = 0
    """The tokens of a slower tier's block that is longer than the cache's own blocks; 0 for none."""
    lookahead: int = 0
    """How many tokens behind a block it depends on, where they are more than one; else 0."""
    adapters: int = 0
    """Adapters that prompts' first blocks have named lately."""
    other_groups: int = 0
    """Blocks of groups that do not show which prompts can be reused."""


class Resolver:
    """Follows one rank's names. `model` and `hash_seed` seed the keys (`indexer.keys.key`).

    `orphan_bytes` bounds the stores that wait for their parent. `waiting` counts those of all ranks
    that share an index; None where the rank shares none.

    `segments` learns every chain, and knows the segment of every key that is held
    (`indexer.keys.segment`); None where segments are not needed. `elsewhere` keeps the rank's other
    names; None where there are none.
    """

    def __init__(
        self,
        model: str,
        hash_seed: str,
        *,
        orphan_bytes: int,
        waiting: AllOrphans | None = None,
        segments: Segments | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.counts = ResolverCounts()
        self.segments = segments
        self.groups = Groups()
        self.names = Names(elsewhere)
        self.orphans = Orphans(orphan_bytes, waiting, self._lost_orphans)
        self.stored_since_doubt = 0
        """Names that the fastest tier began to hold since events were missed or blocks given up."""
        self.released_since_doubt = 0
        """Certain copies that the fastest tier released since `stored_since_doubt` began to count."""
        self.all_in_doubt = True
        """Whether no name was certain when `stored_since_doubt` began to count."""
        self.roots = Roots(model, hash_seed)
        self._elsewhere = elsewhere

    def apply_all(self, events: Sequence[Event]) -> list[Change]:
        changes = self.learn(events)
        for event in events:
            changes += self.apply(event)
        return changes

    def learn(self, events: Iterable[Event]) -> list[Change]:
        """Learn the groups from the next batch, before its events are applied; return the changes."""
        before = self.groups.layout.block_size
        for event in events:
            if isinstance(event, Stored):
                self.groups.learn(event)
        if before and self.groups.layout.block_size != before:
            # Keys of another block size match nothing, so no name can be kept.
            return self.empty()
        return []

    def apply(self, event: Event) -> list[Change]:
        """Follow one event of a batch that `learn` has seen; return its changes."""
        if isinstance(event, Stored):
            return self._store(event)
        if isinstance(event, Removed):
            return self._remove(event)
        if isinstance(event, Moved):
            return self._move(event)
        assert isinstance(event, Cleared)
        self.counts.clears += 1
        return self.empty()

    def empty(self) -> list[Change]:
        """Forget every name and orphan, as after a clear; the groups stay known. Return `Emptied`."""
        self.names.clear()
        self.orphans.clear()
        self.count_anew(all_in_doubt=True)
        if self.segments is not None:
            self.segments.clear()
        return [Emptied()]

    def forget(self) -> list[Change]:
        self.groups.clear()
        return self.empty()

    def _store(self, event: Stored) -> list[Change]:
        layout = self.groups.layout
        group = layout.groups.get(event.group, Group(event.kind, event.block_size or 1))
        spot = (event.tier, event.group)
        way = layout.way(event.group, group)
        if way is Way.LEFT_OUT:
            self.counts.other_groups += len(event.hashes)
            return []
        if way is Way.BY_NAME or event.tokens is None:
            return self._store_known(event, spot, group)
        size = layout.block_size
        if not size or event.block_size % size or (event.extras and event.block_size != size):
            self.counts.unplaced += len(event.hashes)
            return []
        if event.block_size > group.block_size:
            self.counts.chunk_tokens = event.block_size
        if event.lookahead > 1:
            self.counts.lookahead = event.lookahead
        if event.parent is not None:
            parent = self.names.keys.get(event.parent)
        else:
            parent = self.roots.root(event.lora, event.cache_salt, size)
            self.counts.adapters = len(self.roots.adapters)
        if parent is None:
            return self._store_orphan(event, spot)
        return self._store_chained(event, parent, size)

    def _store_chained(self, event: Stored, parent: int, size: int) -> list[Change]:
        """Hold a store whose parent is known, and the orphans that waited for any of its blocks."""
        assert event.tokens is not None
        changes: list[Change] = []
        chained: list[int] = []
        waiting = [(event, parent, frozenset[int]())]
        while waiting:
            stored, above, gone = waiting.pop()
            assert stored.tokens is not None
            keys = chain(above, stored.tokens, size, stored.extras)
            if self.segments is not None:
                self.segments.chained(above, keys)
                chained += keys
            ratio = stored.block_size // size
            changes += self._hold_chain(stored, above, keys, ratio, gone)
            if self.orphans:
                for position, name in enumerate(stored.hashes):
                    last = keys[(position + 1) * ratio - 1]
                    for orphan in self.orphans.of(name):
                        self.counts.adopted += len(orphan.event.hashes) - len(orphan.gone)
                        waiting.append((orphan.event, last, frozenset(orphan.gone)))
        # Blocks that were removed while they waited are not held, though their children may be.
        self._forget_unheld_keys(chained)
        return changes

    def _forget_unheld_keys(self, keys: Iterable[int]) -> None:
        if self.segments is not None:
            for key in keys:
                if not self.names.is_held(key):
                    self.segments.forget(key)

    def _segments_of(self, keys: Collection[int]) -> Sequence[int]:
        return () if self.segments is None else self.segments.of_all(keys)

    def _hold_chain(
        self, event: Stored, above: int, keys: list[int], ratio: int, gone: frozenset[int]
    ) -> list[Change]:
        """Hold a store's blocks, except those at positions `gone`; `above` is the key before them."""
        if self._elsewhere is not None:
            self._elsewhere.fetch(event.hashes, keys)
        begins = None if event.parent is None else above
        held = self.names.chain(event.hashes, begins, keys, ratio, gone)
        spot = (event.tier, event.group)
        # A request holds its whole prefix, but in a window only the last blocks.
        is_whole = event.tier is Tier.GPU and not self.groups.is_window(event.group)
        if is_whole and event.parent is not None:
            self.names.prove_prefix(spot, event.parent)
        if event.once:
            self.counts.again += self.names.certain(spot, held)
        changes = self._hold(
            spot, held, may_be_hit=hits.may_be_hit(event, held, self.groups, self.names)
        )
        if self._elsewhere is not None:
            self._elsewhere.learned(event.hashes)
        return changes

    def _store_known(self, event: Stored, spot: Spot, group: Group) -> list[Change]:
        placed = [name for name in event.hashes if name in self.names.keys]
        if group.kind not in WINDOW_KINDS:
            self.counts.unplaced += len(event.hashes) - len(placed)
        return self._hold(
            spot, placed, may_be_hit=hits.may_be_hit(event, placed, self.groups, self.names)
        )

    def _store_orphan(self, event: Stored, spot: Spot) -> list[Change]:
        if all(name in self.names.keys for name in event.hashes):
            return self._hold(spot, event.hashes)
        self.orphans.keep(event)
        self.counts.parentless += len(event.hashes)
        if event.tier is Tier.GPU:
            self.stored_since_doubt += len(event.hashes)
        return []

    def _lost_orphans(self) -> None:
        """Count the stores for `can_settle` from 0, since orphans were lost, like events in a gap."""
        if self._elsewhere is not None:
            self._elsewhere.count()
        self.count_anew(all_in_doubt=False)

    def count_anew(self, *, all_in_doubt: bool) -> None:
        """Count the stores for `can_settle` from 0; `all_in_doubt` says that no name is certain now."""
        self.stored_since_doubt = 0
        self.released_since_doubt = 0
        self.all_in_doubt = all_in_doubt

    def _hold(
        self, spot: Spot, held: Sequence[EngineHash], *, may_be_hit: bool = False
    ) -> list[Change]:
        holding = self.names.holdings[spot]
        fresh: list[int] = []
        known = holding.certain_names
        links: list[tuple[int, int]] = []
        for name in held:
            more = holding.hold(name, self.names.keys_of(name), may_be_hit=may_be_hit)
            if more:
                above = self.names.key_above(name)
                if above != (fresh[-1] if fresh else 0):
                    links.append((len(fresh), above))
                fresh += more
        self.counts.stored_blocks += len(held)
        if spot[0] is Tier.GPU:
            # The store of a held name may be a hit, for which the engine gave no block away.
            self.stored_since_doubt += holding.certain_names - known
        return [Added(spot, fresh, self._segments_of(fresh), links)] if fresh else []

    def _remove(self, event: Removed) -> list[Change]:
        self.counts.removed_blocks += len(event.hashes)
        if event.tier is not None:
            return self._release((event.tier, event.group), event.hashes)
        changes = []
        for name in event.hashes:
            group = event.group
            tiers = (
                tier
                for tier in Tier
                if name in self.names.copies((tier, group))
                or self.orphans.is_waiting(name, tier, group)
            )
            changes += self._release((next(tiers, Tier.GPU), event.group), [name])
        return changes

    def _release(self, spot: Spot, hashes: Iterable[EngineHash]) -> list[Change]:
        holding = self.names.holdings.get(spot)
        gone: list[int] = []
        for name in hashes:
            if holding and name in holding.copies:
                if spot[0] is Tier.GPU and name not in holding.doubted:
                    self.released_since_doubt += 1
                gone += holding.release(name, self.names.keys_of(name))
                if name not in holding.copies:
                    self.names.forget_unheld(name)
            elif self.orphans.remove(name, *spot):
                self.released_since_doubt += spot[0] is Tier.GPU
            else:
                self.counts.unknown_removals += 1
        return self._gone(spot, gone)

    def _gone(self, spot: Spot, gone: list[int]) -> list[Change]:
        if not gone:
            return []
        change = Gone(spot, gone, self._segments_of(gone))
        self._forget_unheld_keys(gone)
        return [change]

    def _move(self, event: Moved) -> list[Change]:
        if event.hash not in self.names.keys:
            self.counts.unknown_removals += not self.orphans.move(event)
            return []
        held = self._hold((event.target, event.group), [event.hash])
        return held + self._release((event.source, event.group), [event.hash])

    def doubt(self) -> None:
        self.names.doubt()
        # Orphans may be gone too, and nothing could prove them once they are adopted.
        self.orphans.clear()
        self.count_anew(all_in_doubt=True)

    def stores_to_settle(self, capacity: int) -> int:
        """Return how many more stores `can_settle` needs.

        An engine may hold two copies of a block, one of them from before the doubt, and a removal does
        not tell which copy has gone. The other one is not held here any more. So each removal asks
        for one more store, until the cache can hold nothing but what is held here; as many again as
        the cache has blocks are enough, as the other copies are gone by then. Names that were certain
        before are the oldest, and are removed first.
        """
        released = self.released_since_doubt if self.all_in_doubt else 0
        return capacity + min(capacity, released) - self.stored_since_doubt

    def can_settle(self, capacity: int) -> bool:
        """Return whether all blocks that were cached at the last doubt must be gone or proven by now.

        An engine gives its blocks to new content in the order in which they were last used. Once it has
        stored as many blocks as its cache has, every block that was not used again is gone. That does
        not hold for blocks of slower tiers.
        """
        if capacity <= 0 or self.stores_to_settle(capacity) > 0 or len(self.orphans):
            return False
        return all(
            tier is Tier.GPU or not held.copies for (tier, _), held in self.names.holdings.items()
        )

    def settle(self) -> list[Change]:
        changes: list[Change] = []
        for spot, holding in self.names.holdings.items():
            changes += self._gone(spot, self.names.drop(spot, list(holding.doubted)))
        return changes

    def give_up_excess(self) -> list[Change]:
        changes: list[Change] = []
        given_up = 0
        for spot, holding in self.names.holdings.items():
            if spot[0] is not Tier.GPU:
                continue
            unsure = hits.unsure(holding, is_window=self.groups.is_window(spot[1]))
            given_up += len(unsure)
            gone = self.names.drop(spot, unsure)
            holding.one_copy_each()
            changes += self._gone(spot, gone)
        # The next store of these names may be a hit, for which the engine gives no block away.
        self.count_anew(all_in_doubt=False)
        self.stored_since_doubt = -given_up
        return changes

    def save(self) -> SavedResolver:
        return SavedResolver(
            groups=dict(self.groups.layout.groups),
            lookahead=self.groups.layout.lookahead,
            firm=sorted(self.groups.firm),
            parted=sorted(self.groups.parted),
            stored_since_doubt=self.stored_since_doubt,
            released_since_doubt=self.released_since_doubt,
            all_in_doubt=self.all_in_doubt,
            keys=self.names.keys,
            earlier=self.names.earlier,
            above=self.names.above,
            holdings=self.names.save(),
            segments=None if self.segments is None else self.segments.save(),
        )

    def restore(self, saved: SavedResolver) -> list[Change]:
        """Go on from the names that another process saved; return changes that add all keys.

        Raises ValueError where this resolver keeps segments and the saved one did not.
        """
        if self.segments is not None:
            if saved.segments is None:
                raise ValueError("the names were saved without the segments of their keys")
            self.segments.restore(saved.segments)
        saved = saved.one_by_one()
        self.groups.restore(saved)
        self.stored_since_doubt = saved.stored_since_doubt
        self.released_since_doubt = saved.released_since_doubt
        self.all_in_doubt = saved.all_in_doubt
        self.names.restore(saved)
        return [
            Added(spot, keys, self._segments_of(keys))
            for spot, holding in self.names.holdings.items()
            if (keys := list(holding.names))
        ]
