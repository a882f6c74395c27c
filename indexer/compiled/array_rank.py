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
from indexer.compiled import names as names_of
from indexer.compiled import scan as scanning
from indexer.compiled import table
from indexer.compiled.array_index import STEP, ArrayIndex
from indexer.compiled.blocks import SET, TOP
from indexer.compiled.dialect import DIALECTS
from indexer.compiled.memory import zeros
from indexer.compiled.names import CERTAIN, DOUBTED, FASTEST, FIRM, ODD, OWNED, OWNS, SIZE, Own
from indexer.compiled.names import REMOVED as REMOVED_BLOCKS
from indexer.compiled.names import STORED as STORED_BLOCKS
from indexer.compiled.restore import DOUBT_BITS, TIERS, pack, restore
from indexer.engines.event import Batch, EngineHash, Event, Moved, Removed, Stored, Tier
from indexer.group import FULL_KINDS
from indexer.holding import Holding
from indexer.index import BrokenInvariantError
from indexer.rank_slots import RankSlots
from indexer.resolver import Change, Resolver, Spot
from indexer.saved import SavedPlain, SavedResolver
from indexer.token import TOKEN_BYTES

ODD_BYTES = 600
"""What an odd name takes, reckoned."""
OWN_LOAD = 0.9
OWN_GROWTH = 1.12
PLACE_BYTES = 12
"""A place in a table of a rank's own names."""


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
        self._own = names_of.new_own(len(TIERS), 0)
        self._standing: dict[int, list[EngineHash]] = {}
        """The odd names of each key that has any."""
        self._touched: dict[EngineHash, None] = {}
        """Names that the resolver was given, or made."""
        self._payloads: Sequence[bytes] = ()
        self._ends: NDArray[np.int64] = np.zeros(0, np.int64)
        index.keep_names()
        index.outside[self] = self._bytes
        index.purges[self] = self._purge

    # Whole batches

    def scan(self, payloads: Sequence[bytes]) -> int:
        """Return how many batches, from the first one on, are plain."""
        if not self._own.state[SIZE]:
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
            self._index.reserve(STEP, 0)
            self._reserve_own(STEP)
            if self._index.evicted != evicted:
                # The blocks that the last step came to may be among those that were given up.
                evicted = self._index.evicted
                position[2] = 0
                position[3] = min(position[3], 0)
            why = self._step(position, last, carried)
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

    def _step(self, position: NDArray[np.int64], last: int, carried: NDArray[np.uint64]) -> int:
        index = self._index
        with index.turn():
            return following.follow(
                index.blocks,
                index.sets,
                self._own,
                self._index.scratch,
                position,
                last,
                STEP,
                carried,
                index.keys,
                index.now(),
            )

    def _note_counts(self) -> None:
        state = self._own.state
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
        index, numbers = self._index, np.zeros(len(wanted), np.uint32)
        names_of.find_all(index.blocks, index.sets, self._own, wanted, numbers)
        # Another engine's name of a block that this rank holds by an odd one is not the rank's.
        found = [
            int(wanted[at])
            for at in np.flatnonzero(numbers).tolist()
            if int(index.blocks.records[numbers[at], 0]) not in self._standing
        ]
        for name in found:
            self._take_out(name)

    def _pull_keys(self, keys: Iterable[int]) -> None:
        """Take out the names that stand for keys, where any do."""
        wanted = np.array([key for key in keys if key not in self._standing], np.uint64)
        index, numbers = self._index, np.zeros(len(wanted), np.uint32)
        names_of.held_all(index.blocks, index.sets, self._own, wanted, numbers)
        names = [
            int(names_of.name_of(index.blocks, self._own, number))
            for number in numbers[numbers != 0].tolist()
        ]
        for name in names:
            if name and name not in self._keys:
                self._touched[name] = None
                self._take_out(name)

    def _take_out(self, name: int) -> None:
        index = self._index
        index.reserve(len(TIERS), 0)
        number = self._number_of(name)
        if not number:
            return  # given up for want of room, just now
        key = int(index.blocks.records[number, 0])
        self._keys[name] = key
        self._standing.setdefault(key, []).append(name)
        with index.turn():
            tiers = names_of.take_out(index.blocks, index.sets, self._own, np.uint64(name), number)
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
        if name in self._earlier or not self._own.state[SIZE]:
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
        self._put_arrays(*(np.array(column, np.uint64) for column in (names, keys, parents)))

    def _put_arrays(
        self, names: NDArray[np.uint64], keys: NDArray[np.uint64], parents: NDArray[np.uint64]
    ) -> None:
        index = self._index
        done = 0
        while done < len(names):
            stop = min(done + STEP, len(names))
            index.reserve(STEP, 0)
            self._reserve_own(STEP)
            part = slice(done, stop)
            put = names_of.put(
                index.blocks, index.sets, self._own, names[part], keys[part], parents[part]
            )
            if not put:
                # They are all marked as odd still, so none of them went over by itself.
                self._keep_own_names()
                stop = 0
            done = stop

    def _known_key(self, name: EngineHash) -> int:
        if name in self._keys:
            return self._keys[name]
        number = self._number_of(name)
        return int(self._index.blocks.records[number, 0]) if number else 0

    def _mark_odd(self) -> None:
        """Let the arrays know which words are odd."""
        words = [name for name in self._keys if isinstance(name, int)] + list(self._standing)
        own = self._own
        if len(words) == int(own.state[ODD]) == 0:
            return
        places = max(16, 2 * len(words))
        self._own = own._replace(odd=np.zeros(places, np.uint64))
        self._own.state[ODD] = 0
        names_of.mark_odd(self._own, np.array(words, np.uint64))

    def _adapt(self) -> None:
        """Let the arrays know the layout and the slots."""
        own, layout = self._own, self.layout
        group = layout.groups.get(0)
        is_plain = (
            group is not None
            and len(layout.groups) == 1
            and group.kind in FULL_KINDS
            and not layout.lookahead
        )
        size = layout.block_size if is_plain else 0
        if size != own.state[SIZE]:
            own.state[SIZE] = size
            own.root[0] = self._root("", "", size)
        own.state[FIRM] = 0 in self._firm
        for number, tier in enumerate(TIERS):
            own.slots[number, CERTAIN] = self._slots.certain.get((tier, 0), -1)
            own.slots[number, DOUBTED] = self._slots.doubted.get((tier, 0), -1)

    # A table of the rank's own names

    def _keep_own_names(self) -> None:
        """Go over to a table of the rank's own; for want of room the rank may lose all that it holds."""
        index = self._index
        held = self._held()
        if not index.make_room(_places(held + STEP) * PLACE_BYTES, STEP):
            self.empty()
            index.lose(self._slots.slot((TIERS[0], 0)), held)
            self._adapt()
        own, fresh = self._own, self._with_room(self._held() + STEP)
        names_of.gather(index.blocks, index.sets, own, fresh)
        own.state[OWNS] = 1
        self._own = fresh

    def _held(self) -> int:
        return sum(
            map(self._index.count, {*self._slots.certain.values(), *self._slots.doubted.values()})
        )

    def _with_room(self, entries: int) -> Own:
        places = _places(entries)
        fresh = self._own._replace(names=zeros(places, np.uint64), numbers=zeros(places, np.uint32))
        fresh.state[OWNED] = 0
        return fresh

    def _reserve_own(self, more: int) -> None:
        own = self._own
        if own.state[OWNS] and int(own.state[OWNED]) + more > OWN_LOAD * len(own.names):
            self._index.make_room(_places(int(own.state[OWNED]) + more) * PLACE_BYTES, more)
            own = self._own  # there may be room in it by now
            if int(own.state[OWNED]) + more > OWN_LOAD * len(own.names):
                self._copy_own(self._with_room(int(own.state[OWNED]) + more))

    def _copy_own(self, fresh: Own) -> None:
        index = self._index
        names_of.copy(index.blocks, index.sets, self._own, fresh)
        self._own = fresh

    def _purge(self) -> None:
        if self._own.state[OWNS]:
            self._copy_own(self._with_room(int(self._own.state[OWNED])))

    def _bytes(self) -> int:
        own = self._own
        return own.names.nbytes + own.numbers.nbytes + own.odd.nbytes + ODD_BYTES * len(self._keys)

    # Doubt, and the end of it

    def doubt(self) -> None:
        """Take note that something was missed: no name known now is certain any more."""
        super().doubt()
        index = self._index
        for spot, slot in list(self._slots.certain.items()):
            if spot not in self._slots.doubted:
                self._slots.doubt(spot)
            else:
                self._join(slot, self._slots.doubted[spot])
            # What is odd has its doubt beside it, and lies with what is certain.
            odd = list(self._holdings[spot].names) if spot in self._holdings else []
            index.add(self._slots.slot(spot), odd)
            index.remove(self._slots.doubted[spot], odd)
        self._adapt()

    def _join(self, certain: int, doubted: int) -> None:
        index = self._index
        end = int(index.blocks.state[TOP])
        for start in range(1, end, STEP):
            index.reserve(STEP, 0)
            with index.turn():
                following.doubt_all(
                    index.blocks, index.sets, certain, doubted, start, min(start + STEP, end)
                )

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
        self._purge()
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
        if not isinstance(name, int):
            return 0
        blocks, sets = self._index.blocks, self._index.sets
        return int(names_of.find(blocks, sets, self._own, np.uint64(name)))

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
        index = self._index
        left = 0
        while number and not left:
            before = index.evicted
            index.reserve(STEP, 0)
            if index.evicted != before:
                return None
            with index.turn():
                number, left = following.prove(index.blocks, index.sets, self._own, number, STEP)
        names = self._standing.get(int(index.blocks.records[number, 0]), ()) if number else ()
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
        self._own = names_of.new_own(len(TIERS), 0)
        self._adapt()
        return []

    def close(self) -> None:
        """Let the rank hold nothing, for good."""
        self.empty()
        del self._index.outside[self], self._index.purges[self]

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""
        return self._slots.blocks(self.layout)

    def _plain(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return every plain name and its block."""
        index = self._index
        most = int(self._own.state[OWNED]) or int(index.blocks.state[TOP])
        names, numbers = np.empty(most, np.uint64), np.empty(most, np.uint32)
        count = names_of.plain(index.blocks, index.sets, self._own, names, numbers)
        return names[:count], numbers[:count]

    def _plain_spots(
        self, numbers: NDArray[np.uint32]
    ) -> Iterable[tuple[Spot, bool, NDArray[np.bool_]]]:
        """Yield each slot of the rank: its spot, whether it is one of doubt, and which blocks it has."""
        index = self._index
        held = index.blocks.halves[numbers, SET]
        for of, in_doubt in ((self._slots.certain, False), (self._slots.doubted, True)):
            for spot, slot in of.items():
                words = index.sets.words[held, slot >> 6]
                yield spot, in_doubt, (words >> np.uint64(slot & 63)) & np.uint64(1) != 0

    def held(self) -> dict[Spot, set[int]]:
        """Return the keys that each place holds."""
        held = super().held()
        _, numbers = self._plain()
        keys = self._index.blocks.records[numbers, 0]
        for spot, _, there in self._plain_spots(numbers):
            held.setdefault(spot, set()).update(keys[there].tolist())
        return held

    def save(self) -> SavedResolver:
        """Return what a later process needs to go on from here."""
        saved = super().save()
        names, numbers = self._plain()
        slots = self._slots
        plain = pack(
            self._index.blocks, self._index.sets, names, numbers, slots.certain, slots.doubted
        )
        return replace(saved, parents=self._odd_parents(names, numbers), plain=plain)

    def _odd_parents(
        self, names: NDArray[np.uint64], numbers: NDArray[np.uint32]
    ) -> dict[EngineHash, EngineHash]:
        """Return the parents of odd names."""
        parents = dict(self._parents)
        above = {name: self._number_above(name) for name in self._keys if name not in parents}
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
            saved = saved.one_by_one()
        else:
            self._claim_slots(np.frombuffer(plain.places, np.uint8))
            saved = replace(saved, plain=None)
        self._pass_on(super().restore(saved))
        for name in list(self._keys):
            self._note(name)
        self._settle_touched()
        if plain is not None:
            self._put_back(plain)
        return []

    def _claim_slots(self, places: NDArray[np.uint8]) -> None:
        """Have a slot for each place that is in use."""
        used = int(np.bitwise_or.reduce(places, initial=0))
        for bit, tier in enumerate(TIERS):
            if used >> bit & (1 | 1 << DOUBT_BITS):
                self._slots.slot((tier, 0))
            if used >> bit & 1 << DOUBT_BITS:
                self._slots.doubt((tier, 0))

    def _put_back(self, plain: SavedPlain) -> None:
        index = self._index
        names, keys, parents = (
            np.frombuffer(packed, "<u8").astype(np.uint64)
            for packed in (plain.names, plain.keys, plain.parents)
        )
        places = np.frombuffer(plain.places, np.uint8)
        # Each bit changes a block's set.
        most = int(np.unpackbits(places.reshape(-1, 1), axis=1).sum(axis=1).max(initial=1))
        done = 0
        while done < len(names):
            stop = min(done + STEP // most, len(names))
            index.reserve(STEP, 0)
            self._reserve_own(STEP)
            with index.turn():
                came = restore(
                    index.blocks,
                    index.sets,
                    self._own,
                    names,
                    keys,
                    parents,
                    places,
                    done,
                    stop,
                    index.now(),
                )
            if came < stop:
                self._keep_own_names()
            done = came

    def check(self) -> None:
        """Raise BrokenInvariantError where any part contradicts itself."""
        super().check()
        standing: dict[int, set[EngineHash]] = {}
        for name in self._keys:
            for key in self._keys_of(name):
                standing.setdefault(key, set()).add(name)
        if standing != {key: set(names) for key, names in self._standing.items()}:
            raise BrokenInvariantError("the odd names of the keys do not add up")
        names, numbers = self._plain()
        if not self._keys.keys().isdisjoint(names.tolist()):
            raise BrokenInvariantError("a name is plain and odd")
        found = np.zeros(len(names), np.uint32)
        index = self._index
        names_of.find_all(index.blocks, index.sets, self._own, names, found)
        if (found != numbers).any():
            raise BrokenInvariantError("a plain name is not found")
        if not index.evicted:
            self._slots.check(self.held())


def _places(entries: int) -> int:
    """Return the places of a rank's own table with room for so many names."""
    return int(entries * OWN_GROWTH / OWN_LOAD) + 16


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
