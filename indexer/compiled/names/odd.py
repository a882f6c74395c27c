"""One rank's odd names over the compiled index: the pure resolver, and what it and the arrays hand over.

Whatever an event names is taken out of the arrays before the resolver sees it, and what is plain again
afterwards is put back (`indexer.compiled.names.names`). So both see one state, each name in one place,
and the resolver's rules hold for all of it. Names go with the blocks that the index gives up.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain as chain_of

import numpy as np

from indexer.compiled.array_index import ArrayIndex
from indexer.compiled.blocks import table
from indexer.compiled.names.plain import PlainNames
from indexer.compiled.names.restore import TIERS
from indexer.compiled.names.standing import Standing
from indexer.engines.event import EngineHash, Event, Moved, Removed, Stored
from indexer.resolve.holding import Holding
from indexer.resolve.rank_slots import RankSlots
from indexer.resolve.resolver import Change, Gone, Resolver, Spot

ODD_BYTES = 600
"""What an odd name takes, reckoned."""


class OddNames(Resolver):
    """The names of one rank that are no plain ones, and the way there and back."""

    def __init__(
        self,
        model: str,
        hash_seed: str,
        *,
        orphan_bytes: int,
        index: ArrayIndex,
        slots: RankSlots,
    ) -> None:
        super().__init__(model, hash_seed, orphan_bytes=orphan_bytes, waiting=index.waiting)
        self._index = index
        self._slots = slots
        self._plain = PlainNames(index, slots)
        self._standing = Standing()
        self._touched: dict[EngineHash, None] = {}
        """Names that the resolver was given, or made."""
        self._is_busy = False
        """Whether names are being followed, so that none may be forgotten meanwhile."""
        self._lost = 0
        """Odd names, about, whose blocks the index has given up and that are to be forgotten."""
        self._left: dict[Spot, list[int]] = {}
        """Keys for which else forgotten names stood, and that are to be let go."""
        index.keep_names()
        index.outside[self] = self._bytes
        index.purges[self] = self._purge

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Forget no name meanwhile, whatever the index gives up."""
        self._is_busy = True
        before = len(self._keys)
        try:
            yield
            self._forget_all_lost()
            if len(self._keys) > before:
                self._index.spend(ODD_BYTES * (len(self._keys) - before))
                self._forget_all_lost()
        finally:
            self._is_busy = False

    def _forget_all_lost(self) -> None:
        while self._lost:
            self._forget_lost()
            self._let_go()

    def _pass_on(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._slots.apply(change)

    # What the resolver is given

    def _apply(self, event: Event) -> list[Change]:
        if isinstance(event, Stored | Removed):
            self._pull(event.hashes)
            if isinstance(event, Stored) and event.parent is not None:
                self._pull((event.parent,))
        elif isinstance(event, Moved):
            self._pull((event.hash,))
        changes = super()._apply(event)
        # At once, so that the next event's names are looked for in a true index.
        self._pass_on(changes)
        return []

    def _hold_chain(
        self, event: Stored, above: int, keys: list[int], ratio: int, gone: frozenset[int]
    ) -> list[Change]:
        self._pull(event.hashes)
        self._pull_keys(keys)
        changes = super()._hold_chain(event, above, keys, ratio, gone)
        for name in event.hashes:
            self._note(name)
        return changes

    def _note(self, name: EngineHash) -> None:
        self._touched[name] = None
        if name in self._keys:
            self._standing.add(name, self._keys_of(name))

    def _forget_unheld(self, name: EngineHash) -> None:
        keys = self._keys_of(name)
        super()._forget_unheld(name)
        if name not in self._keys:
            self._standing.discard(name, keys)

    def _pull(self, names: Iterable[EngineHash]) -> None:
        """Take names out of the arrays."""
        self._touched.update(dict.fromkeys(names))
        wanted = np.array(
            [
                name
                for name in dict.fromkeys(names)  # an event may name a block twice
                if name not in self._keys
            ],
            np.uint64,
        )
        # Another engine's name of a block that this rank holds by an odd one is not the rank's.
        self._mark_odd()
        for name in wanted[self._plain.find_all(wanted) != 0].tolist():
            self._take_out(name)

    def _pull_keys(self, keys: Iterable[int]) -> None:
        """Take out the names that stand for keys, where any do."""
        wanted = np.array([key for key in keys if key not in self._standing], np.uint64)
        for name in self._plain.held_under(wanted):
            if name not in self._keys:
                self._touched[name] = None
                self._take_out(name)

    def _take_out(self, name: int) -> None:
        key, above, spots = self._plain.take_out(name)
        if not spots:
            return
        self._keys[name] = key
        if above:
            self._above[name] = above
        self._standing.add(name, (key,))
        for spot, in_doubt in spots:
            holding = self._holdings.setdefault(spot, Holding())
            holding.take(name, key, in_doubt=in_doubt)

    def _store_orphan(self, event: Stored, spot: Spot) -> list[Change]:
        changes = super()._store_orphan(event, spot)
        if event.parent is not None and self.orphans.are_waiting_for(event.parent):
            self._plain.wait_for(event.parent, self.orphans.awaited)
        return changes

    # What is plain again

    def _settle_touched(self) -> None:
        """Put back what is plain, and mark what is odd."""
        self._adapt()
        self._mark_odd()
        self._put([name for name in self._touched if self._is_plain(name)])
        self._touched.clear()
        self._mark_odd()
        if not self.orphans:
            self._plain.wait_for_none()

    def _is_plain(self, name: EngineHash) -> bool:
        if not name or name not in self._keys:
            return False
        if name in self._earlier or not self._plain.block_size:
            return False
        return len(self._standing.of(self._keys[name])) == 1 and all(
            name not in holding.copies
            or (
                group in self._plain.groups
                and holding.copies[name] == 1
                and name not in holding.doubted
                and name not in holding.thinned
            )
            for (_, group), holding in self._holdings.items()
        )

    def _put(self, names: Sequence[EngineHash]) -> None:
        above = [self._above.pop(name, 0) for name in names]
        keys = []
        for name in names:
            key = self._keys.pop(name)
            keys.append(key)
            self._standing.discard(name, (key,))
            for holding in self._holdings.values():
                if name in holding.copies:
                    holding.drop(name, (key,))
        words = [np.array(column, np.uint64) for column in (names, keys, above)]
        if not self._plain.put(*words) and self._keep_own_names():
            self._plain.put(*words)

    def _mark_odd(self) -> None:
        """Let the arrays know which words are odd."""
        self._plain.mark(*self._standing.take_changed(self._keys))

    def _adapt(self) -> None:
        """Let the arrays know the layout and the slots."""
        self._plain.adapt(
            self.layout,
            self._firm,
            lambda size: self._root("", "", size),
            waits=bool(self.orphans),
        )

    def _root(self, lora: str, cache_salt: str, size: int) -> int:
        root = super()._root(lora, cache_salt, size)
        if (lora or cache_salt) and size == self._plain.block_size:
            self._plain.learn_root(lora, cache_salt, root)
        return root

    def _keep_own_names(self) -> bool:
        """Go over to a table of the rank's own; False where it lost all that it held to have room."""
        has_room = self._plain.has_room()
        if not has_room:
            held = self._plain.held()
            self.empty()
            self._index.lose(self._slots.slot((TIERS[0], 0)), held)
            self._adapt()
        self._plain.keep_own()
        return has_room

    def _bytes(self) -> int:
        return self._plain.nbytes() + ODD_BYTES * (len(self._keys) - self._lost)

    # What the index gives up

    def _purge(self) -> None:
        """Forget the names of blocks that the index has given up, or take note that it is to be done."""
        self._plain.purge()
        self._lost = sum(
            len(self._standing.of(key))
            for key in set(chain_of.from_iterable(self._lost_keys().values()))
        )
        if not self._is_busy and (self._lost or self._left):
            self._forget_lost()

    def _lost_keys(self) -> dict[Spot, list[int]]:
        """Return the keys of odd names that places do not hold any more."""
        return {
            spot: self._split(spot, list(holding.names))[1]
            for spot, holding in self._holdings.items()
        }

    def _split(self, spot: Spot, keys: list[int]) -> tuple[list[int], list[int]]:
        """Return those of some keys that a place holds in the index, and those that it does not."""
        slot = self._slots.certain.get(spot)
        if slot is None:
            return [], keys
        words = np.array(keys, np.uint64)
        there = self._index.holds(slot, words) != 0
        return words[there].tolist(), words[~there].tolist()

    def _forget_lost(self) -> None:
        self._lost = 0
        for spot, keys in self._lost_keys().items():
            holding = self._holdings[spot]
            names = dict.fromkeys(chain_of.from_iterable(map(self._standing.of, keys)))
            left: list[int] = []
            for name in names:
                if name in holding.copies:
                    left += holding.drop(name, self._keys_of(name))
                    self._forget_unheld(name)
            # A chunk's blocks are not all given up at once.
            self._left.setdefault(spot, []).extend(left)
            self._left[spot] = self._split(spot, self._left[spot])[0]
        self._mark_odd()

    def _let_go(self) -> None:
        """Let go of what forgotten names stood for besides."""
        while self._left:
            spot, keys = self._left.popitem()
            if keys:
                self._pass_on([Gone(spot, keys)])

    # Doubt

    def _prove_prefix(self, spot: Spot, name: EngineHash) -> None:
        holding = self._holdings.get(spot)
        current: EngineHash | None = name
        while holding and current is not None and holding.prove(current):
            self._touched[current] = None
            above = self._above.get(current, 0)
            if above not in self._standing:
                # A plain name is a key's only one.
                number = self._plain.prove(spot, self._number_under(above))
                above = int(self._index.blocks.records[number, 0])
            current = holding.sole(above)

    def _number_under(self, key: int) -> int:
        """Return the number of a key's block; 0 for none."""
        blocks = self._index.blocks
        return int(table.find(blocks.by_key, blocks.records, np.uint64(key))) if key else 0
