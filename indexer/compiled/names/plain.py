"""One rank's plain names: the Python side of the compiled functions in this folder.

A block's number is void once the index has given up any block (`Arrays.evicted`).
"""

from collections.abc import Callable, Collection, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.arrays import STEP
from warmpath.indexer.compiled.blocks.blocks import SET, TOP
from warmpath.indexer.compiled.names import follow as following
from warmpath.indexer.compiled.names import hold, words
from warmpath.indexer.compiled.names import names as names_of
from warmpath.indexer.compiled.names import roots as roots_of
from warmpath.indexer.compiled.names.follow import Bounds
from warmpath.indexer.compiled.names.names import (
    ARE_WAITING,
    AWAITED,
    CERTAIN,
    DOUBTED,
    ODD,
    ODD_KEYS,
    OWNED,
    OWNS,
    SIZE,
    SPOTS,
    Own,
)
from warmpath.indexer.compiled.names.names_by_key import Marks
from warmpath.indexer.compiled.names.restore import TIERS
from warmpath.indexer.compiled.names.roots import RootTable
from warmpath.indexer.engines.cache_groups import WINDOW_KINDS, Layout
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.resolve.rank_slots import RankSlots

OWN_LOAD = 0.9
OWN_GROWTH = 1.12
PLACE_BYTES = 12
"""Bytes of a place in a rank's own table of names."""

MOST_GROUPS = 16
"""How many groups of a rank may have plain names."""

Words = NDArray[np.uint64]
Numbers = NDArray[np.uint32]


class PlainNames:
    """The plain names of one rank."""

    def __init__(self, index: ArrayIndex, slots: RankSlots) -> None:
        self._index = index
        self._arrays = index.arrays
        self._slots = slots
        self.own: Own
        self.roots: RootTable
        self.clear()

    def clear(self) -> None:
        """Forget every name, before a new life. The caller empties the slots."""
        self.own = names_of.new_own()
        self._slots.keep_names(None, None)
        self.roots = roots_of.new_roots()
        self.groups: dict[int, int] = {}
        """The row in `Own.groups` of each group, by the group's number."""

    @property
    def block_size(self) -> int:
        """Tokens per block; 0 before that is known, while no name is plain."""
        return int(self.own.state[SIZE])

    def adapt(
        self, layout: Layout, firm: Collection[int], root: Callable[[int], int], *, waits: bool
    ) -> None:
        """Copy the layout and the rank's slots into the arrays.

        `firm` are groups whose block size is certain, `root` returns the key before a prompt's first
        block for a block size, and `waits` says whether any orphan waits.
        """
        own = self.own
        if layout.block_size != own.state[SIZE]:
            own.state[SIZE] = layout.block_size
            own.root[0] = root(layout.block_size)
            self.roots = roots_of.new_roots()
        own.state[ARE_WAITING] = waits
        known = list(islice(layout.groups.items(), MOST_GROUPS))
        self.groups = {number: row for row, (number, _) in enumerate(known)}
        rows = [
            (
                number,
                layout.way(number, one),
                one.block_size,
                number in firm,
                one.kind in WINDOW_KINDS,
            )
            for number, one in known
        ]
        slots = np.full((SPOTS * len(rows), 2), -1, np.int64)
        for column, of in ((CERTAIN, self._slots.certain), (DOUBTED, self._slots.doubted)):
            for (tier, group), slot in of.items():
                row = self.groups.get(group)
                if row is not None:
                    slots[row * SPOTS + TIERS.index(tier), column] = slot
        self.own = own._replace(
            groups=np.array(rows, np.int64).reshape(-1, 5), slots=slots, taken=slots[slots >= 0]
        )

    def learn_root(self, lora: str, salt: str, key: int) -> None:
        """Remember the key before a prompt's first block for an adapter and a salt."""
        self.roots = roots_of.learn(self.roots, lora, salt, key)

    def mark(self, names: Marks, keys: Marks) -> None:
        """Mark names and keys that became odd, and unmark those that no longer are."""
        state = self.own.state
        odd, state[ODD] = _marked(self.own.odd, int(state[ODD]), *names)
        odd_keys, state[ODD_KEYS] = _marked(self.own.odd_keys, int(state[ODD_KEYS]), *keys)
        if odd is not self.own.odd or odd_keys is not self.own.odd_keys:
            self.own = self.own._replace(odd=odd, odd_keys=odd_keys)

    def wait_for(self, name: int, awaited: Callable[[], list[int]]) -> None:
        """Mark a name as awaited by orphans; `awaited` returns all such names.

        A name that is no longer awaited stays marked until the set is full: its events are only followed
        more slowly.
        """
        names = [name]
        if 2 * int(self.own.state[AWAITED]) >= len(self.own.awaited):
            names = awaited()
            self.wait_for_none()
            room = words.with_room(self.own.awaited, 0, len(names))
            self.own = self.own._replace(awaited=room)
        self.own.state[AWAITED] += words.add(self.own.awaited, np.array(names, np.uint64))

    def wait_for_none(self) -> None:
        """Unmark every awaited name."""
        if self.own.state[AWAITED]:
            self.own = self.own._replace(awaited=np.zeros(words.LEAST, np.uint64))
            self.own.state[AWAITED] = 0

    # Searching

    def find(self, name: int) -> int:
        """Return the number of the block that the rank holds by a plain name; 0 for none."""
        return int(self.find_all(np.array([name], np.uint64))[0])

    def find_all(self, names: Words) -> Numbers:
        """Return for each name the number that `find` returns."""
        numbers = np.zeros(len(names), np.uint32)
        names_of.find_all(self._arrays.blocks, self._arrays.sets, self.own, names, numbers)
        return numbers

    def held_under(self, keys: Words) -> list[int]:
        """Return the plain names that stand for any of `keys`."""
        numbers = np.zeros(len(keys), np.uint32)
        names_of.held_all(self._arrays.blocks, self._arrays.sets, self.own, keys, numbers)
        numbers = numbers[numbers != 0]
        if not len(numbers):
            return []
        if not self.own.state[OWNS]:
            names: list[int] = self._arrays.blocks.names[numbers, 0].tolist()
        else:
            # One pass over the whole table finds all of them.
            names = self.own.names[np.isin(self.own.numbers, numbers)].tolist()
        return [name for name in names if name]

    def all(self) -> tuple[Words, Numbers]:
        """Return every plain name and the number of its block."""
        most = int(self.own.state[OWNED]) or int(self._arrays.blocks.state[TOP])
        names, numbers = np.empty(most, np.uint64), np.empty(most, np.uint32)
        count = names_of.plain(self._arrays.blocks, self._arrays.sets, self.own, names, numbers)
        return names[:count], numbers[:count]

    def holders(self, numbers: Numbers) -> Iterator[tuple[Spot, NDArray[np.bool_]]]:
        """Yield each slot's place, and which of the blocks `numbers` the slot holds."""
        held = self._arrays.blocks.halves[numbers, SET]
        for of in (self._slots.certain, self._slots.doubted):
            for spot, slot in of.items():
                words = self._arrays.sets.words[held, slot >> 6]
                yield spot, (words >> np.uint64(slot & 63)) & np.uint64(1) != 0

    # Following

    def follow(
        self, ends: NDArray[np.int64], position: NDArray[np.int64], carried: Words, bounds: Bounds
    ) -> int:
        """Apply a step of the scanned batches (`follow.follow`). The caller has reserved the room."""
        index, arrays = self._index, self._arrays
        with arrays.turn():
            return following.follow(
                arrays.blocks,
                arrays.sets,
                self.own,
                self.roots,
                index.scratch,
                ends,
                position,
                STEP,
                carried,
                arrays.keys,
                index.now(),
                bounds,
            )

    def prove(self, spot: Spot, number: int) -> int:
        """Prove a block and those before it in a place; return the first number not proved, or 0."""
        arrays = self._arrays
        tier, group = spot
        if group not in self.groups:
            return number
        row = self.groups[group] * SPOTS + TIERS.index(tier)
        left = 0
        while number and not left:
            if not arrays.reserve(STEP, 0):
                return 0
            with arrays.turn():
                number, left = hold.prove(arrays.blocks, arrays.sets, self.own, row, number, STEP)
        return number

    def join(self, certain: int, doubted: int) -> None:
        """Move all blocks of slot `certain` to slot `doubted`."""
        arrays = self._arrays
        end = int(arrays.blocks.state[TOP])
        for start in range(1, end, STEP):
            arrays.reserve(STEP, 0)
            with arrays.turn():
                hold.doubt_all(
                    arrays.blocks, arrays.sets, certain, doubted, start, min(start + STEP, end)
                )

    def take_out(self, name: int) -> tuple[int, int, list[tuple[Spot, bool]]]:
        """Move a plain name out of the arrays, since it now needs the resolver in Python.

        Return its key, the parent's key (0 for none), and its places, each with whether it is in doubt.
        All are empty where the block was given up just now.
        """
        arrays = self._arrays
        there = np.zeros(len(self.own.slots), np.uint8)
        arrays.reserve(len(there), 0)
        number = self.find(name)
        if not number:
            return 0, 0, []  # given up to make room, just now
        key = int(arrays.blocks.records[number, 0])
        parent = int(arrays.blocks.parents[number])
        above = int(arrays.blocks.records[parent, 0]) if parent else 0
        with arrays.turn():
            names_of.take_out(arrays.blocks, arrays.sets, self.own, np.uint64(name), number, there)
        groups = list(self.groups)
        return (
            key,
            above,
            [
                ((TIERS[at % SPOTS], groups[at // SPOTS]), bool(there[at] == 2))
                for at in np.flatnonzero(there).tolist()
            ],
        )

    def put(self, names: Words, keys: Words, parents: Words) -> bool:
        """Make `names`, whose blocks the rank holds, plain; they are still marked as odd.

        Return False where the rank needs a table of its own first; no name is lost then.
        """
        arrays = self._arrays
        for start in range(0, len(names), STEP):
            self.reserve()
            part = slice(start, start + STEP)
            if not names_of.put(
                arrays.blocks, arrays.sets, self.own, names[part], keys[part], parents[part]
            ):
                return False
        return True

    # A table of the rank's own

    def make_room(self) -> bool:
        """Evict blocks until the rank's own table of names fits; return whether it does."""
        return self._arrays.make_room(_places(self.held() + STEP) * PLACE_BYTES, STEP)

    def keep_own(self) -> None:
        """Keep the rank's names in a table of its own from now on."""
        fresh = self._with_room(self.held() + STEP)
        names_of.gather(self._arrays.blocks, self._arrays.sets, self.own, fresh)
        fresh.state[OWNS] = 1
        self._take(fresh)

    def held(self) -> int:
        """Return how many blocks the rank's places hold in all; one in two places counts twice."""
        slots = {*self._slots.certain.values(), *self._slots.doubted.values()}
        return sum(map(self._index.count, slots))

    def reserve(self) -> None:
        """Make room for `STEP` blocks, and as many names in the rank's own table where it has one."""
        self._arrays.reserve(STEP, 0)
        if self._lacks():
            places = _places(int(self.own.state[OWNED]) + STEP)
            self._arrays.make_room(places * PLACE_BYTES, STEP)
            if self._lacks():  # making room may have shrunk this table too (`purge`)
                self._copy(self._with_room(int(self.own.state[OWNED]) + STEP))

    def _lacks(self) -> bool:
        own = self.own
        return bool(own.state[OWNS]) and own.state[OWNED] + STEP > OWN_LOAD * len(own.names)

    def purge(self) -> None:
        """Forget names of blocks that the index has given up."""
        if self.own.state[OWNS]:
            self._copy(self._with_room(int(self.own.state[OWNED])))

    def _with_room(self, entries: int) -> Own:
        places, zeros = _places(entries), self._arrays.zeros
        fresh = self.own._replace(names=zeros(places, np.uint64), numbers=zeros(places, np.uint32))
        fresh.state[OWNED] = 0
        return fresh

    def _copy(self, fresh: Own) -> None:
        names_of.copy(self._arrays.blocks, self._arrays.sets, self.own, fresh)
        self._take(fresh)

    def _take(self, fresh: Own) -> None:
        self._slots.keep_names(fresh.names, fresh.numbers)
        self.own = fresh

    def nbytes(self) -> int:
        """Return the bytes of the rank's own arrays."""
        own = self.own
        # `awaited` counts with the stores that wait (`indexer.index.orphans`).
        odd = own.odd.nbytes + own.odd_keys.nbytes
        return own.names.nbytes + own.numbers.nbytes + odd + roots_of.nbytes(self.roots)


def _marked(known: Words, used: int, odd: list[int], plain: list[int]) -> tuple[Words, int]:
    """Return a set of odd words after a change, perhaps in a new array, and how many words it has."""
    if plain:
        used -= words.discard(known, np.array(plain, np.uint64))
    known = words.with_room(known, used, len(odd))
    if odd:
        used += words.add(known, np.array(odd, np.uint64))
    return known, used


def _places(entries: int) -> int:
    """Return how many places a rank's own table needs for `entries` names."""
    return int(entries * OWN_GROWTH / OWN_LOAD) + 16
