"""One rank over the compiled index: plain names in arrays, and the pure resolver for what is odd.

Whatever an event names is taken out of the arrays before the resolver sees it, and what is plain again
afterwards is put back (`indexer.compiled.names`). So both see one state, each name in one place, and
the resolver's rules hold for all of it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from indexer.compiled import follow as following
from indexer.compiled import scan as scanning
from indexer.compiled import table
from indexer.compiled.array_index import ArrayIndex
from indexer.compiled.dialect import DIALECTS
from indexer.compiled.names import FASTEST
from indexer.compiled.names import REMOVED as REMOVED_BLOCKS
from indexer.compiled.names import STORED as STORED_BLOCKS
from indexer.compiled.plain_names import PlainNames
from indexer.compiled.restore import TIERS
from indexer.engines.event import Batch, EngineHash, Event, Moved, Removed, Stored, Tier
from indexer.holding import Holding
from indexer.index import BrokenInvariantError
from indexer.rank_slots import RankSlots
from indexer.resolver import Change, Resolver, Spot
from indexer.saved import SavedResolver
from indexer.token import TOKEN_BYTES

ODD_BYTES = 600
"""What an odd name takes, reckoned."""


class ArrayState(Resolver):
    """What one rank holds. `dialect` names how its engine writes, `decode` is its pure codec."""

    def __init__(
        self,
        model: str,
        hash_seed: str,
        *,
        orphan_bytes: int,
        index: ArrayIndex,
        slots: RankSlots,
        dialect: str,
        decode: Callable[[bytes], Batch],
    ) -> None:
        super().__init__(model, hash_seed, orphan_bytes=orphan_bytes)
        self._index = index
        self._slots = slots
        self._dialect = DIALECTS[dialect]
        self._decode = decode
        self._plain = PlainNames(index, slots)
        self._standing: dict[int, list[EngineHash]] = {}
        """The odd names of each key that has any."""
        self._touched: dict[EngineHash, None] = {}
        """Names that the resolver was given, or made."""
        self._payloads: Sequence[bytes] = ()
        self._ends: NDArray[np.int64] = np.zeros(0, np.int64)
        index.keep_names()
        index.outside[self] = self._bytes
        index.purges[self] = self._plain.purge

    # Whole batches

    def scan(self, payloads: Sequence[bytes]) -> int:
        """Return how many batches, from the first one on, are plain."""
        if not self._plain.block_size:
            return 0
        data = np.frombuffer(b"".join(payloads), np.uint8)
        if data.size > len(self._index.scratch.names):
            self._index.scratch = scanning.room(2 * data.size)
        ends = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
        self._ends = np.empty(len(payloads), np.int64)
        count = scanning.scan(data, ends, self._dialect, self._index.scratch, self._ends)
        self._payloads = payloads[:count]
        return count

    def apply_scanned(self) -> None:
        """Follow the batches that were scanned."""
        position = np.array([0, 0, 0, -1])
        carried = np.zeros(1, np.uint64)
        last = int(self._ends[len(self._payloads) - 1])
        evicted = self._index.evicted
        while True:
            self._plain.reserve()
            if self._index.evicted != evicted:
                # The blocks that the last step came to may be among those that were given up.
                evicted = self._index.evicted
                position[2] = 0
                position[3] = min(position[3], 0)
            why = self._plain.follow(position, last, carried)
            if why == following.DONE:
                break
            if why == following.OTHER_NAMES:
                self._keep_own_names()
            elif why == following.STRANGE:
                event = int(position[0])
                number = int(np.searchsorted(self._ends, event, side="right"))
                first = int(self._ends[number - 1]) if number else 0
                events = self._decode(self._payloads[number]).events[event - first :]
                self.apply([_rest(events[0], int(position[1])), *events[1:]])
                position[:] = self._ends[number], 0, 0, -1
        self._payloads = ()
        self._note_counts()

    def _note_counts(self) -> None:
        state = self._plain.own.state
        self.counts.stored_blocks += int(state[STORED_BLOCKS])
        self.counts.removed_blocks += int(state[REMOVED_BLOCKS])
        self.stored_since_doubt += int(state[FASTEST])
        state[STORED_BLOCKS] = state[REMOVED_BLOCKS] = state[FASTEST] = 0

    def apply(self, events: Sequence[Event]) -> None:
        """Follow the events of one batch, decoded."""
        self._pass_on(self.apply_all(events))
        self._settle_touched()

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
        self, event: Stored, keys: list[int], ratio: int, gone: frozenset[int]
    ) -> list[Change]:
        self._pull(event.hashes)
        self._pull_keys(keys)
        changes = super()._hold_chain(event, keys, ratio, gone)
        for name in event.hashes:
            self._note(name)
        return changes

    def _note(self, name: EngineHash) -> None:
        self._touched[name] = None
        if name in self._keys:
            for key in self._keys_of(name):
                names = self._standing.setdefault(key, [])
                if name not in names:
                    names.append(name)

    def _forget_unheld(self, name: EngineHash) -> None:
        keys = self._keys_of(name)
        super()._forget_unheld(name)
        if name not in self._keys:
            self._unnote(name, keys)

    def _unnote(self, name: EngineHash, keys: Iterable[int]) -> None:
        for key in keys:
            names = self._standing[key]
            names.remove(name)
            if not names:
                del self._standing[key]

    def _pull(self, names: Iterable[EngineHash]) -> None:
        """Take names out of the arrays."""
        self._touched.update(dict.fromkeys(names))
        wanted = np.array(
            [name for name in names if isinstance(name, int) and name not in self._keys], np.uint64
        )
        numbers = self._plain.find_all(wanted)
        # Another engine's name of a block that this rank holds by an odd one is not the rank's.
        found = [
            int(wanted[at])
            for at in np.flatnonzero(numbers).tolist()
            if int(self._index.blocks.records[numbers[at], 0]) not in self._standing
        ]
        for name in found:
            self._take_out(name)

    def _pull_keys(self, keys: Iterable[int]) -> None:
        """Take out the names that stand for keys, where any do."""
        wanted = np.array([key for key in keys if key not in self._standing], np.uint64)
        for name in self._plain.held_under(wanted):
            if name not in self._keys:
                self._touched[name] = None
                self._take_out(name)

    def _take_out(self, name: int) -> None:
        key, tiers = self._plain.take_out(name)
        if not tiers:
            return
        self._keys[name] = key
        self._standing.setdefault(key, []).append(name)
        for bit, tier in enumerate(TIERS):
            if tiers >> bit & 1:
                holding = self._holdings.setdefault((tier, 0), Holding())
                holding.copies[name] = 1
                holding.names[key] = holding.names.get(key, 0) + 1
                if tiers >> bit & 0x100:
                    holding.doubted.add(name)

    # What is plain again

    def _settle_touched(self) -> None:
        """Put back what is plain, and mark what is odd."""
        self._adapt()
        self._mark_odd()
        self._put([name for name in self._touched if self._is_plain(name)])
        self._touched.clear()
        self._mark_odd()

    def _is_plain(self, name: EngineHash) -> bool:
        if not isinstance(name, int) or not name or name not in self._keys:
            return False
        if name in self._earlier or not self._plain.block_size:
            return False
        return len(self._standing[self._keys[name]]) == 1 and all(
            name not in holding.copies
            or (group == 0 and holding.copies[name] == 1 and name not in holding.doubted)
            for (_, group), holding in self._holdings.items()
        )

    def _put(self, names: Sequence[EngineHash]) -> None:
        # Before any of them is gone from the dicts, where looking a key up costs next to nothing.
        above = [self._parents.pop(name, None) for name in names]
        parents = [0 if name is None else self._known_key(name) for name in above]
        keys = []
        for name in names:
            key = self._keys.pop(name)
            keys.append(key)
            self._unnote(name, (key,))
            for holding in self._holdings.values():
                if holding.copies.pop(name, None):
                    holding.names[key] -= 1
                    if not holding.names[key]:
                        del holding.names[key]
        words = [np.array(column, np.uint64) for column in (names, keys, parents)]
        if not self._plain.put(*words) and self._keep_own_names():
            self._plain.put(*words)

    def _known_key(self, name: EngineHash) -> int:
        if name in self._keys:
            return self._keys[name]
        number = self._number_of(name)
        return int(self._index.blocks.records[number, 0]) if number else 0

    def _mark_odd(self) -> None:
        """Let the arrays know which words are odd."""
        words = [name for name in self._keys if isinstance(name, int)] + list(self._standing)
        self._plain.mark_odd(words)

    def _adapt(self) -> None:
        """Let the arrays know the layout and the slots."""
        self._plain.adapt(
            self.layout, is_firm=0 in self._firm, root=lambda size: self._root("", "", size)
        )

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
        return self._plain.nbytes() + ODD_BYTES * len(self._keys)

    # Doubt, and the end of it

    def doubt(self) -> None:
        """Take note that something was missed: no name known now is certain any more."""
        super().doubt()
        index = self._index
        for spot, slot in list(self._slots.certain.items()):
            if spot not in self._slots.doubted:
                self._slots.doubt(spot)
            else:
                self._plain.join(slot, self._slots.doubted[spot])
            # What is odd has its doubt beside it, and lies with what is certain.
            odd = list(self._holdings[spot].names) if spot in self._holdings else []
            index.add(self._slots.slot(spot), odd)
            index.remove(self._slots.doubted[spot], odd)
        self._adapt()

    def can_settle(self, capacity: int) -> bool:
        """Whether everything that was cached at the last doubt must be gone or proven by now."""
        slots = (self._slots.certain, self._slots.doubted)
        return super().can_settle(capacity) and not any(
            tier is not Tier.GPU and self._index.count(slot)
            for of in slots
            for (tier, _), slot in of.items()
        )

    def settle(self) -> list[Change]:
        """Drop what is still in doubt."""
        self._pass_on(super().settle())
        self._slots.drop_doubted()
        self._adapt()
        self._plain.purge()
        self._mark_odd()
        return []

    def _prove_prefix(self, spot: Spot, name: EngineHash) -> None:
        holding = self._holdings.get(spot)
        current: EngineHash | None = name
        while current is not None:
            if current in self._keys:
                if not holding or not holding.prove(current):
                    return
                self._touched[current] = None
                number = self._number_above(current)
            else:
                number = self._number_of(current)
            current = self._prove_plain(number)

    def _number_of(self, name: EngineHash) -> int:
        return self._plain.find(name) if isinstance(name, int) else 0

    def _number_above(self, name: EngineHash) -> int:
        """Return the parent of an odd name's block."""
        blocks = self._index.blocks
        above = self._parents.get(name)
        if above is not None:
            key = self._known_key(above)
            return int(table.find(blocks.by_key, blocks.records, np.uint64(key))) if key else 0
        number = table.find(blocks.by_key, blocks.records, np.uint64(self._keys[name]))
        return int(blocks.parents[number]) if number else 0

    def _prove_plain(self, number: int) -> EngineHash | None:
        """Prove from a block on; return the odd name that is next, where it is the only one."""
        number = self._plain.prove(number)
        key = int(self._index.blocks.records[number, 0])
        names = self._standing.get(key, ()) if number else ()
        return names[0] if len(names) == 1 else None

    def lost_room(self) -> None:
        """Take note that keys were given up for want of room."""
        self.stored_since_doubt = 0

    # Ends and beginnings

    def empty(self) -> list[Change]:
        """Forget every name; the groups stay what they are."""
        changes = super().empty()
        self._standing.clear()
        self._touched.clear()
        self._pass_on(changes)
        self._plain.clear()
        self._adapt()
        return []

    def close(self) -> None:
        """Let the rank hold nothing, for good."""
        self.empty()
        del self._index.outside[self], self._index.purges[self]

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""
        return self._slots.blocks(self.layout)

    def held(self) -> dict[Spot, set[int]]:
        """Return the keys that each place holds."""
        held = super().held()
        _, numbers = self._plain.all()
        keys = self._index.blocks.records[numbers, 0]
        for spot, there in self._plain.holders(numbers):
            held.setdefault(spot, set()).update(keys[there].tolist())
        return held

    def save(self) -> SavedResolver:
        """Return what a later process needs to go on from here."""
        saved = super().save()
        return replace(saved, parents=self._odd_parents(), plain=self._plain.save())

    def _odd_parents(self) -> dict[EngineHash, EngineHash]:
        """Return the parents of odd names."""
        parents = dict(self._parents)
        above = {name: self._number_above(name) for name in self._keys if name not in parents}
        if not above:
            return parents
        names, numbers = self._plain.all()
        which = np.isin(numbers, np.array(list(above.values()), np.uint32))
        plain = dict(zip(numbers[which].tolist(), names[which].tolist(), strict=True))
        for name, number in above.items():
            odd = self._standing.get(int(self._index.blocks.records[number, 0]))
            if number and (odd or number in plain):
                parents[name] = odd[0] if odd else plain[number]
        return parents

    def restore(self, saved: SavedResolver) -> list[Change]:
        """Go on from what another process saved."""
        plain = saved.plain
        if plain is None or plain.tiers != TIERS:
            plain = None
        else:
            self._plain.claim_slots(plain)
            saved = replace(saved, plain=None)
        self._pass_on(super().restore(saved))
        for name in list(self._keys):
            self._note(name)
        self._settle_touched()
        if plain is not None:
            for _ in self._plain.restore(plain):
                self._keep_own_names()
        return []

    def check(self) -> None:
        """Raise BrokenInvariantError where any part contradicts itself."""
        super().check()
        standing: dict[int, set[EngineHash]] = {}
        for name in self._keys:
            for key in self._keys_of(name):
                standing.setdefault(key, set()).add(name)
        if standing != {key: set(names) for key, names in self._standing.items()}:
            raise BrokenInvariantError("the odd names of the keys do not add up")
        names, numbers = self._plain.all()
        if not self._keys.keys().isdisjoint(names.tolist()):
            raise BrokenInvariantError("a name is plain and odd")
        if (self._plain.find_all(names) != numbers).any():
            raise BrokenInvariantError("a plain name is not found")
        held = np.zeros(len(names), np.bool_)
        for _, there in self._plain.holders(numbers):
            held |= there
        if not held.all():
            raise BrokenInvariantError("a plain name's block is not held")
        if not self._index.evicted:
            self._slots.check(self.held())


def _rest(event: Event, done: int) -> Event:
    """Return what is left of an event when some of its blocks are done."""
    if not done:
        return event
    if isinstance(event, Removed):
        return dataclasses.replace(event, hashes=event.hashes[done:])
    assert isinstance(event, Stored)
    assert event.tokens is not None
    return dataclasses.replace(
        event,
        hashes=event.hashes[done:],
        parent=event.hashes[done - 1],
        tokens=event.tokens[done * event.block_size * TOKEN_BYTES :],
        extras=None,
    )
