"""Keeps one rank's odd names over the compiled index, and moves names between arrays and resolver.

Before the resolver follows an event, every name of the event is taken out of the arrays; names that are
plain afterwards (`indexer.compiled.names.names`) are put back. So each name is kept on one side only,
and the resolver's rules hold for both. When the index gives up a block, its odd names are forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain as chain_of

import numpy as np

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.blocks import table
from warmpath.indexer.compiled.names.names import (
    COUNTS,
    FASTEST,
    OTHERS,
    RELEASED,
    REMOVED,
    STORED,
    UNKNOWN,
    UNPLACED,
)
from warmpath.indexer.compiled.names.names_by_key import NamesByKey
from warmpath.indexer.compiled.names.plain import PlainNames
from warmpath.indexer.compiled.names.restore import TIERS
from warmpath.indexer.engines.event import EngineHash, Event, Moved, Removed, Stored
from warmpath.indexer.resolve.change import Change, Emptied, Gone, Spot
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.resolve.resolver import Resolver

ODD_BYTES = 600
"""An estimate of an odd name's bytes."""


class OddNames:
    """Keeps one rank's odd names in a resolver, whose `indexer.resolve.names.Elsewhere` this is."""

    def __init__(
        self, model: str, hash_seed: str, *, orphan_bytes: int, index: ArrayIndex, slots: RankSlots
    ) -> None:
        self.resolver = Resolver(
            model, hash_seed, orphan_bytes=orphan_bytes, waiting=index.waiting, elsewhere=self
        )
        self.names = self.resolver.names
        self.plain = PlainNames(index, slots)
        self.by_key = NamesByKey()
        self._index = index
        self._slots = slots
        self._touched: dict[EngineHash, None] = {}
        """Names that the resolver worked on since `settle_touched` was last called."""
        self._is_busy = False
        """Whether the resolver is at work, so that no name may be forgotten now."""
        self._lost = 0
        """About how many odd names are to be forgotten because the index has given up their blocks."""
        self.left: dict[Spot, list[int]] = {}
        """Keys still held in the index whose names were forgotten; `let_go` removes them."""
        index.arrays.keep_names()
        index.arrays.outside.add(self, self._bytes)
        index.arrays.purges[self] = self._purge

    def close(self) -> None:
        """Take the rank's callbacks out of the index."""
        self._index.arrays.outside.remove(self)
        del self._index.arrays.purges[self]

    @contextmanager
    def following(self) -> Iterator[None]:
        """While this is open, keep all names, even those of blocks that the index gives up."""
        self._is_busy = True
        self._index.arrays.outside.changes(self)
        before = len(self.names.keys)
        try:
            yield
            self._forget_all_lost()
            if len(self.names.keys) > before:
                self._index.arrays.spend(ODD_BYTES * (len(self.names.keys) - before))
                self._forget_all_lost()
        finally:
            self._is_busy = False

    def _forget_all_lost(self) -> None:
        while self._lost:
            self._forget_lost()
            self.let_go()

    def pass_on(self, changes: Iterable[Change]) -> None:
        """Apply the resolver's changes to the index; `Emptied` also empties the arrays."""
        self._index.arrays.outside.changes(self)
        for change in changes:
            self._slots.apply(change)
            if isinstance(change, Emptied):
                self.by_key.clear()
                self._touched.clear()
                self.left.clear()
                self._lost = 0
                self.plain.clear()
                self.adapt()

    def empty(self) -> None:
        """Forget every name; the groups stay what they are."""
        self.count()
        self.pass_on(self.resolver.empty())

    # From the arrays to the resolver

    def apply(self, events: Sequence[Event]) -> None:
        """Apply a batch by the resolver, once the names in it are taken out of the arrays."""
        self.pass_on(self.resolver.learn(events))
        for event in events:
            if isinstance(event, Stored | Removed):
                self._pull(event.hashes)
                if isinstance(event, Stored) and event.parent is not None:
                    self._pull((event.parent,))
            elif isinstance(event, Moved):
                self._pull((event.hash,))
            # Applied before the next event, whose names are searched for in the index.
            self.pass_on(self.resolver.apply(event))
            if isinstance(event, Stored):
                self._note_beginning(event)

    def _note_beginning(self, event: Stored) -> None:
        """Mark in the arrays the parent that a store waits for, or keep the root of its prompt there."""
        if event.parent is not None:
            orphans = self.resolver.orphans
            if orphans.are_waiting_for(event.parent):
                self.plain.wait_for(event.parent, orphans.awaited)
        elif event.lora or event.cache_salt:
            size = self.plain.block_size
            root = self.resolver.roots.known(event.lora, event.cache_salt, size)
            if root is not None:
                self.plain.learn_root(event.lora, event.cache_salt, root)

    def fetch(self, names: Iterable[EngineHash], keys: Iterable[int]) -> None:
        """Take names, and the names that stand for keys, out of the arrays."""
        self._pull(names)
        self._pull_keys(keys)

    def learned(self, names: Iterable[EngineHash]) -> None:
        """Record the keys of odd names, and let `settle_touched` look at all of these names."""
        for name in names:
            self.touch(name)
            if name in self.names.keys:
                self.by_key.add(name, self.names.keys_of(name))

    def forgotten(self, name: EngineHash, keys: Iterable[int]) -> None:
        """Let a name stand for its keys no longer."""
        self.by_key.discard(name, keys)

    def touch(self, *names: EngineHash) -> None:
        """Let `settle_touched` look at names: they may be plain again."""
        self._touched.update(dict.fromkeys(names))

    def keys_in(self, spot: Spot) -> list[int]:
        """Return the keys that a place holds by odd names."""
        holding = self.names.holdings.get(spot)
        return list(holding.names) if holding else []

    def count(self) -> None:
        """Add the arrays' counts of blocks to the resolver's."""
        state, counts = self.plain.own.state, self.resolver.counts
        counts.stored_blocks += int(state[STORED])
        counts.removed_blocks += int(state[REMOVED])
        counts.unplaced += int(state[UNPLACED])
        counts.unknown_removals += int(state[UNKNOWN])
        counts.other_groups += int(state[OTHERS])
        self.resolver.stored_since_doubt += int(state[FASTEST])
        self.resolver.released_since_doubt += int(state[RELEASED])
        state[COUNTS] = 0

    def _pull(self, names: Iterable[EngineHash]) -> None:
        """Take names out of the arrays."""
        self._touched.update(dict.fromkeys(names))
        wanted = np.array(
            [
                name
                for name in dict.fromkeys(names)  # an event may name a block twice
                if name not in self.names.keys
            ],
            np.uint64,
        )
        # If the rank holds a block by an odd name, the block's shared name is another engine's.
        self.mark_odd()
        for name in wanted[self.plain.find_all(wanted) != 0].tolist():
            self._take_out(name)

    def _pull_keys(self, keys: Iterable[int]) -> None:
        """Take the plain names of keys out of the arrays, if there are any."""
        wanted = np.array([key for key in keys if key not in self.by_key], np.uint64)
        for name in self.plain.held_under(wanted):
            if name not in self.names.keys:
                self._touched[name] = None
                self._take_out(name)

    def _take_out(self, name: int) -> None:
        key, above, spots = self.plain.take_out(name)
        if not spots:
            return
        self.names.keys[name] = key
        if above:
            self.names.above[name] = above
        self.by_key.add(name, (key,))
        for spot, in_doubt in spots:
            self.names.holdings[spot].take(name, key, in_doubt=in_doubt)

    # From the resolver to the arrays

    def settle_touched(self) -> None:
        """Put names that are plain now back into the arrays, and mark the odd ones."""
        self.adapt()
        self.mark_odd()
        self._put([name for name in self._touched if self._is_plain(name)])
        self._touched.clear()
        self.mark_odd()
        if not self.resolver.orphans:
            self.plain.wait_for_none()

    def _is_plain(self, name: EngineHash) -> bool:
        if not name or name not in self.names.keys:
            return False
        if name in self.names.earlier or not self.plain.block_size:
            return False
        return len(self.by_key.of(self.names.keys[name])) == 1 and all(
            name not in holding.copies
            or (
                group in self.plain.groups
                and holding.copies[name] == 1
                and name not in holding.doubted
                and name not in holding.thinned
            )
            for (_, group), holding in self.names.holdings.items()
        )

    def _put(self, names: Sequence[EngineHash]) -> None:
        above = [self.names.above.pop(name, 0) for name in names]
        keys = []
        for name in names:
            key = self.names.keys.pop(name)
            keys.append(key)
            self.by_key.discard(name, (key,))
            for holding in self.names.holdings.values():
                if name in holding.copies:
                    holding.drop(name, (key,))
        words = [np.array(column, np.uint64) for column in (names, keys, above)]
        if not self.plain.put(*words) and self.keep_own_names():
            self.plain.put(*words)

    def mark_odd(self) -> None:
        """Mark in the arrays which names and keys are odd."""
        self.plain.mark(*self.by_key.take_changed(self.names.keys))

    def adapt(self) -> None:
        """Copy the layout and the slots into the arrays."""
        resolver = self.resolver
        self.plain.adapt(
            resolver.groups.layout,
            resolver.groups.firm,
            lambda size: resolver.roots.root("", "", size),
            waits=bool(resolver.orphans),
        )

    def keep_own_names(self) -> bool:
        """Give the rank a table of its own names; False where the rank lost everything to make room."""
        self._index.arrays.outside.changes(self)
        has_room = self.plain.make_room()
        if not has_room:
            held = self.plain.held()
            self.empty()
            self._index.arrays.lose(self._slots.slot((TIERS[0], 0)), held)
            self.adapt()
        self.plain.keep_own()
        return has_room

    def _bytes(self) -> int:
        return self.plain.nbytes() + ODD_BYTES * (len(self.names.keys) - self._lost)

    # Blocks that the index gives up

    def _purge(self) -> None:
        """Forget the names of blocks that the index has given up, or count them for later."""
        self._index.arrays.outside.changed(self)
        self.plain.purge()
        self._lost = sum(
            len(self.by_key.of(key))
            for key in set(chain_of.from_iterable(self._lost_keys().values()))
        )
        if not self._is_busy and (self._lost or self.left):
            self._forget_lost()

    def _lost_keys(self) -> dict[Spot, list[int]]:
        """Return each place's keys of odd names whose blocks the index has given up."""
        return {
            spot: self._split(spot, list(holding.names))[1]
            for spot, holding in self.names.holdings.items()
        }

    def _split(self, spot: Spot, keys: list[int]) -> tuple[list[int], list[int]]:
        """Return the keys that a place holds in the index, and the keys that it does not hold there."""
        slot = self._slots.certain.get(spot)
        if slot is None:
            return [], keys
        words = np.array(keys, np.uint64)
        there = self._index.holds(slot, words) != 0
        return words[there].tolist(), words[~there].tolist()

    def _forget_lost(self) -> None:
        self._lost = 0
        for spot, keys in self._lost_keys().items():
            holding = self.names.holdings[spot]
            names = dict.fromkeys(chain_of.from_iterable(map(self.by_key.of, keys)))
            left: list[int] = []
            for name in names:
                if name in holding.copies:
                    left += holding.drop(name, self.names.keys_of(name))
                    self.names.forget_unheld(name)
            # A chunk's blocks are not all given up at once.
            self.left.setdefault(spot, []).extend(left)
            self.left[spot] = self._split(spot, self.left[spot])[0]
        self.mark_odd()

    def let_go(self) -> None:
        """Remove keys from the index whose names were forgotten."""
        self._index.arrays.outside.changes(self)
        while self.left:
            spot, keys = self.left.popitem()
            if keys:
                self.pass_on([Gone(spot, keys)])

    # Doubt

    def prove(self, spot: Spot, name: EngineHash, above: int) -> int:
        """Prove the plain names above a name; return the key where that stops, 0 for none."""
        self.touch(name)
        if above in self.by_key:
            return above
        # A plain name is the only name of its key.
        number = self.plain.prove(spot, self.number_under(above))
        return int(self._index.arrays.blocks.records[number, 0])

    def number_under(self, key: int) -> int:
        """Return the number of a key's block; 0 for none."""
        blocks = self._index.arrays.blocks
        return int(table.number_of(blocks.by_key, blocks.records, np.uint64(key))) if key else 0
