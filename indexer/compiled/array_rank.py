"""One rank over the compiled index: plain names in arrays, and the pure resolver for odd names.

`indexer.compiled.names.names` says which names are plain. Batches are scanned and followed in the
arrays, event by event, up to the first name that is not plain; the rest of that batch is decoded
and goes to the resolver (`indexer.compiled.names.odd`).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.names import follow as following
from warmpath.indexer.compiled.names.follow import NEVER, Bounds
from warmpath.indexer.compiled.names.hold import OTHER_NAMES, STRANGE
from warmpath.indexer.compiled.names.odd import OddNames
from warmpath.indexer.compiled.names.restore import TIERS
from warmpath.indexer.compiled.names.saving import claim_slots, hold_saved
from warmpath.indexer.compiled.names.saving import save as save_plain
from warmpath.indexer.compiled.scan.dialect import DIALECTS
from warmpath.indexer.compiled.scan.scan import scan
from warmpath.indexer.compiled.scan.scanned import room
from warmpath.indexer.engines.cache_groups import WINDOW_KINDS
from warmpath.indexer.engines.event import Batch, Event, Removed, Stored, Tier
from warmpath.indexer.keys.key import TOKEN_BYTES
from warmpath.indexer.resolve import groups as hits
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.resolve.saved import SavedResolver


class ArrayState:
    """The state of one rank. `dialect` names the form of its batches; `decode` decodes them."""

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
        self._odd = OddNames(model, hash_seed, orphan_bytes=orphan_bytes, index=index, slots=slots)
        self.resolver = self._odd.resolver
        self.groups = self.resolver.groups
        self.counts = self.resolver.counts
        self.orphans = self.resolver.orphans
        self._plain = self._odd.plain
        self._index = index
        self._slots = slots
        self._dialect = DIALECTS[dialect]
        self._decode = decode
        self._payloads: Sequence[bytes] = ()
        self._ends: NDArray[np.int64] = np.zeros(0, np.int64)
        self._position: NDArray[np.int64] = np.zeros(5, np.int64)
        self.changes = 0

    # Whole batches

    def scan(self, payloads: Sequence[bytes]) -> int:
        if not self._plain.block_size:
            return 0
        data = np.frombuffer(b"".join(payloads), np.uint8)
        if data.size > len(self._index.scratch.names):
            self._index.scratch = room(2 * data.size)
        ends = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
        self._ends = np.empty(len(payloads), np.int64)
        self._index.scratch = self._index.scratch._replace(data=data)
        count = scan(ends, self._dialect, self._index.scratch, self._ends)
        self._ends = self._ends[:count]
        self._payloads = payloads[:count]
        self._position = np.array([0, 0, 0, -1, 0])
        return count

    def apply_scanned(self, capacity: int, *, heals: bool) -> bool:
        self._odd.let_go()
        position, carried = self._position, np.zeros(1, np.uint64)
        bounds = self._bounds(capacity, heals=heals)
        evicted = self._index.arrays.evicted
        while True:
            self._plain.reserve()
            if self._index.arrays.evicted != evicted:
                # The block before the next one may be among those that were given up.
                evicted = self._index.arrays.evicted
                position[2] = self._odd.number_under(int(carried[0])) or -1 if position[1] else 0
            why = self._plain.follow(self._ends, position, carried, bounds)
            if why == OTHER_NAMES:
                self._odd.keep_own_names()
            elif why == STRANGE:
                self._odd.count()
                self._apply_rest(position)
            if why in (following.DONE, STRANGE, following.TELLING):
                break
        self._odd.count()
        return int(position[4]) < len(self._ends)

    def _apply_rest(self, position: NDArray[np.int64]) -> None:
        """Follow the rest of a batch whose next event, or the next block in it, is not plain."""
        event, done, _, _, number = position.tolist()
        first = int(self._ends[number - 1]) if number else 0
        events = self._decode(self._payloads[number]).events[event - first :]
        self.apply([_rest(events[0], done), *events[1:]])
        if isinstance(events[0], Stored) and events[0].once:
            # A name that comes twice in one event does not count as stored again (`Resolver`).
            just_held = set(events[0].hashes[:done])
            self.counts.again -= sum(name in just_held for name in events[0].hashes[done:])
        position[:] = self._ends[number], 0, 0, -1, number + 1

    def _bounds(self, capacity: int, *, heals: bool) -> Bounds:
        pool: list[int] = []
        slower: list[int] = []
        for of in (self._slots.certain, self._slots.doubted):
            for (tier, group), slot in of.items():
                if tier is not Tier.GPU:
                    slower.append(slot)
                elif of is self._slots.certain and group not in self.resolver.groups.parted:
                    pool.append(slot)
        in_use = self.blocks_in_use() if capacity else None
        # Copies of odd names beyond a block's first, which plain batches do not change.
        beside = 0 if in_use is None else in_use - sum(map(self._index.count, pool))
        settles = heals and capacity and not self.orphans
        return Bounds(
            pool=np.array(pool, np.int64),
            most=NEVER if in_use is None else capacity - beside,
            slower=np.array(slower, np.int64),
            enough=self.resolver.stores_to_settle(capacity) if settles else NEVER,
        )

    def apply(self, events: Sequence[Event]) -> None:
        self.changes += 1
        self._odd.let_go()
        with self._odd.following():
            self._odd.apply(events)
            self._odd.settle_touched()

    # Doubt, and the end of it

    def doubt(self) -> None:
        self.changes += 1
        self._odd.let_go()
        with self._odd.following():
            self.resolver.doubt()
            for spot, slot in list(self._slots.certain.items()):
                if spot not in self._slots.doubted:
                    self._slots.doubt(spot)
                else:
                    self._plain.join(slot, self._slots.doubted[spot])
                # Odd names keep their doubt in the resolver, and their keys in the certain slot.
                odd = self._odd.keys_in(spot)
                self._index.add(self._slots.slot(spot), odd)
                self._index.remove(self._slots.doubted[spot], odd)
            self._odd.adapt()

    def can_settle(self, capacity: int) -> bool:
        slots = (self._slots.certain, self._slots.doubted)
        return self.resolver.can_settle(capacity) and not any(
            tier is not Tier.GPU and self._index.count(slot)
            for of in slots
            for (tier, _), slot in of.items()
        )

    def settle(self) -> None:
        self.changes += 1
        with self._odd.following():
            self._odd.pass_on(self.resolver.settle())
            self._slots.drop_doubted()
            self._odd.adapt()
            self._plain.purge()
            self._odd.mark_odd()

    def lost_room(self) -> None:
        self.changes += 1
        self.resolver.count_anew(all_in_doubt=False)
        self._odd.let_go()

    def blocks_in_use(self) -> int | None:
        in_use = hits.blocks_in_use(self.resolver.groups, self.resolver.names)
        if in_use is None:
            return None
        for spot, slot in list(self._slots.certain.items()):
            if spot[0] is Tier.GPU and spot[1] not in self.resolver.groups.parted:
                # The slot holds plain names, of one copy each, and the odd names' keys.
                holding = self.resolver.names.holdings.get(spot)
                in_use += self._index.count(slot) - (len(holding.names) if holding else 0)
        return in_use

    def may_show_hits(self) -> bool:
        return hits.may_show_hits(self.resolver.groups, self.resolver.names)

    def give_up_excess(self) -> None:
        self.changes += 1
        with self._odd.following():
            for holding in self.resolver.names.holdings.values():
                self._odd.touch(*holding.copies)
            self._odd.pass_on(self.resolver.give_up_excess())
            for group, known in self.groups.layout.groups.items():
                if known.kind in WINDOW_KINDS and (Tier.GPU, group) in self._slots.certain:
                    self._give_up_plain((Tier.GPU, group))
            self._odd.adapt()
            self._plain.purge()
            self._odd.settle_touched()

    def _give_up_plain(self, spot: Spot) -> None:
        """Let a place no longer hold the blocks that it certainly held by plain names."""
        odd = self._odd.keys_in(spot)
        self.resolver.stored_since_doubt -= self._index.count(self._slots.slot(spot)) - len(odd)
        self._slots.drop(spot)
        self._index.add(self._slots.slot(spot), odd)

    # Ends and beginnings

    def forget(self) -> None:
        self.changes += 1
        self._odd.count()
        self._odd.pass_on(self.resolver.forget())

    def close(self) -> None:
        self._odd.empty()
        self._odd.close()

    def blocks(self) -> Mapping[Tier, int]:
        return self._slots.blocks(self.groups.layout)

    def held(self) -> dict[Spot, set[int]]:
        held = self.resolver.names.held()
        for spot, left in self._odd.left.items():
            held.setdefault(spot, set()).update(left)
        _, numbers = self._plain.all()
        keys = self._index.arrays.blocks.records[numbers, 0]
        for spot, there in self._plain.holders(numbers):
            held.setdefault(spot, set()).update(keys[there].tolist())
        return held

    @property
    def odd(self) -> int:
        return len(self.resolver.names.keys)

    def save(self, *, plain: bool = True) -> SavedResolver:
        saved = self.resolver.save()
        if not plain:
            return saved
        return replace(saved, plain=save_plain(self._index, self._slots, self._plain))

    def restore(self, saved: SavedResolver) -> None:
        self.changes += 1
        plain = saved.plain
        if plain is None or plain.tiers != TIERS:
            plain = None
        else:
            claim_slots(self._slots, plain)
            saved = replace(saved, plain=None)
        with self._odd.following():
            self._odd.pass_on(self.resolver.restore(saved))
            self._odd.learned(list(self.resolver.names.keys))
            self._odd.settle_touched()
        if plain is not None:
            for _ in hold_saved(self._index, self._plain, plain):
                self._odd.keep_own_names()


def _rest(event: Event, done: int) -> Event:
    """Return an event without its first `done` blocks."""
    if not done:
        return event
    if isinstance(event, Removed):
        return dataclasses.replace(event, hashes=event.hashes[done:])
    assert isinstance(event, Stored)
    rest = dataclasses.replace(
        event,
        hashes=event.hashes[done:],
        parent=event.hashes[done - 1],
        is_rest=event.parent is None,
    )
    if event.tokens is None:
        return rest
    return dataclasses.replace(
        rest,
        tokens=event.tokens[done * event.block_size * TOKEN_BYTES :],
        extras=None if event.extras is None else event.extras[done:],
    )
