"""One rank's plain names in the index's arrays (`indexer.compiled.names`): what Python does about them.

Numbers of blocks are void once the index has given up any (`ArrayIndex.evicted`).
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from indexer.compiled import follow as following
from indexer.compiled import names as names_of
from indexer.compiled.array_index import STEP, ArrayIndex
from indexer.compiled.blocks import SET, TOP
from indexer.compiled.memory import zeros
from indexer.compiled.names import CERTAIN, DOUBTED, FIRM, ODD, OWNED, OWNS, SIZE, Own
from indexer.compiled.restore import TIERS, pack, restore
from indexer.group import FULL_KINDS, Layout
from indexer.rank_slots import RankSlots
from indexer.resolver import Spot
from indexer.saved import DOUBT_BITS, SavedPlain

OWN_LOAD = 0.9
OWN_GROWTH = 1.12
PLACE_BYTES = 12
"""A place in a table of a rank's own names."""

Words = NDArray[np.uint64]
Numbers = NDArray[np.uint32]


class PlainNames:
    """The plain names of one rank. `clear` them before a new life."""

    def __init__(self, index: ArrayIndex, slots: RankSlots) -> None:
        self._index = index
        self._slots = slots
        self.own: Own
        self.clear()

    def clear(self) -> None:
        """Know no name; the slots are emptied elsewhere."""
        self.own = names_of.new_own(len(TIERS), 0)

    @property
    def block_size(self) -> int:
        """Tokens a block; 0 where nothing is plain."""
        return int(self.own.state[SIZE])

    def adapt(self, layout: Layout, *, is_firm: bool, root: Callable[[int], int]) -> None:
        """Take note of the layout, and of the slots; `root` gives a block size's."""
        own = self.own
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
            own.root[0] = root(size)
        own.state[FIRM] = is_firm
        for number, tier in enumerate(TIERS):
            own.slots[number, CERTAIN] = self._slots.certain.get((tier, 0), -1)
            own.slots[number, DOUBTED] = self._slots.doubted.get((tier, 0), -1)

    def mark_odd(self, words: list[int]) -> None:
        """Take note of the words, names and keys, that are odd."""
        if len(words) == int(self.own.state[ODD]) == 0:
            return
        self.own = self.own._replace(odd=np.zeros(max(16, 2 * len(words)), np.uint64))
        self.own.state[ODD] = 0
        names_of.mark_odd(self.own, np.array(words, np.uint64))

    # Looking at them

    def find(self, name: int) -> int:
        """Return the number of a name's block; 0 for none."""
        return int(names_of.find(self._index.blocks, self._index.sets, self.own, np.uint64(name)))

    def find_all(self, names: Words) -> Numbers:
        """Return the numbers of names' blocks; 0 for none."""
        numbers = np.zeros(len(names), np.uint32)
        names_of.find_all(self._index.blocks, self._index.sets, self.own, names, numbers)
        return numbers

    def held_under(self, keys: Words) -> list[int]:
        """Return the plain names that stand for any of `keys`."""
        numbers = np.zeros(len(keys), np.uint32)
        names_of.held_all(self._index.blocks, self._index.sets, self.own, keys, numbers)
        found = numbers[numbers != 0].tolist()
        names = (int(names_of.name_of(self._index.blocks, self.own, number)) for number in found)
        return [name for name in names if name]

    def all(self) -> tuple[Words, Numbers]:
        """Return every plain name and the number of its block."""
        most = int(self.own.state[OWNED]) or int(self._index.blocks.state[TOP])
        names, numbers = np.empty(most, np.uint64), np.empty(most, np.uint32)
        count = names_of.plain(self._index.blocks, self._index.sets, self.own, names, numbers)
        return names[:count], numbers[:count]

    def holders(self, numbers: Numbers) -> Iterator[tuple[Spot, NDArray[np.bool_]]]:
        """Yield each place of the rank, and which of some blocks it has; a place may come twice."""
        held = self._index.blocks.halves[numbers, SET]
        for of in (self._slots.certain, self._slots.doubted):
            for spot, slot in of.items():
                words = self._index.sets.words[held, slot >> 6]
                yield spot, (words >> np.uint64(slot & 63)) & np.uint64(1) != 0

    # Following

    def follow(self, position: NDArray[np.int64], last: int, carried: Words) -> int:
        """Apply some of what was scanned (`follow.follow`); what it takes is reserved."""
        index = self._index
        with index.turn():
            return following.follow(
                index.blocks,
                index.sets,
                self.own,
                index.scratch,
                position,
                last,
                STEP,
                carried,
                index.keys,
                index.now(),
            )

    def prove(self, number: int) -> int:
        """Prove from a block on; return the number of the odd one that is next, 0 for none."""
        index = self._index
        left = 0
        while number and not left:
            if not index.reserve(STEP, 0):
                return 0
            with index.turn():
                number, left = following.prove(index.blocks, index.sets, self.own, number, STEP)
        return number

    def join(self, certain: int, doubted: int) -> None:
        """Let one slot hold what another one holds too, and that one nothing."""
        index = self._index
        end = int(index.blocks.state[TOP])
        for start in range(1, end, STEP):
            index.reserve(STEP, 0)
            with index.turn():
                following.doubt_all(
                    index.blocks, index.sets, certain, doubted, start, min(start + STEP, end)
                )

    def take_out(self, name: int) -> tuple[int, int]:
        """Make a name odd; return its key and its tiers (`names.take_out`), 0 and 0 for none."""
        index = self._index
        index.reserve(len(TIERS), 0)
        number = self.find(name)
        if not number:
            return 0, 0  # given up for want of room, just now
        key = int(index.blocks.records[number, 0])
        with index.turn():
            tiers = names_of.take_out(index.blocks, index.sets, self.own, np.uint64(name), number)
        return key, tiers

    def put(self, names: Words, keys: Words, parents: Words) -> bool:
        """Make names plain of blocks that the rank holds, all marked as odd still.

        False where the rank needs a table of its own first; nothing is lost then.
        """
        index = self._index
        for start in range(0, len(names), STEP):
            self.reserve()
            part = slice(start, start + STEP)
            if not names_of.put(
                index.blocks, index.sets, self.own, names[part], keys[part], parents[part]
            ):
                return False
        return True

    # A table of the rank's own

    def has_room(self) -> bool:
        """Whether there is room for a table of the rank's own, when others have given way."""
        return self._index.make_room(_places(self.held() + STEP) * PLACE_BYTES, STEP)

    def keep_own(self) -> None:
        """Go over to a table of the rank's own."""
        fresh = self._with_room(self.held() + STEP)
        names_of.gather(self._index.blocks, self._index.sets, self.own, fresh)
        fresh.state[OWNS] = 1
        self.own = fresh

    def held(self) -> int:
        """Return how many blocks the rank's places hold together."""
        slots = {*self._slots.certain.values(), *self._slots.doubted.values()}
        return sum(map(self._index.count, slots))

    def reserve(self) -> None:
        """Make room for `STEP` blocks, and as many names in the rank's own table where it has one."""
        self._index.reserve(STEP, 0)
        if self._lacks():
            places = _places(int(self.own.state[OWNED]) + STEP)
            self._index.make_room(places * PLACE_BYTES, STEP)
            if self._lacks():  # where others had to give way, this rank has too
                self._copy(self._with_room(int(self.own.state[OWNED]) + STEP))

    def _lacks(self) -> bool:
        own = self.own
        return bool(own.state[OWNS]) and own.state[OWNED] + STEP > OWN_LOAD * len(own.names)

    def purge(self) -> None:
        """Forget names of blocks that the index has given up."""
        if self.own.state[OWNS]:
            self._copy(self._with_room(int(self.own.state[OWNED])))

    def _with_room(self, entries: int) -> Own:
        places = _places(entries)
        fresh = self.own._replace(names=zeros(places, np.uint64), numbers=zeros(places, np.uint32))
        fresh.state[OWNED] = 0
        return fresh

    def _copy(self, fresh: Own) -> None:
        names_of.copy(self._index.blocks, self._index.sets, self.own, fresh)
        self.own = fresh

    def nbytes(self) -> int:
        """Return the bytes of what is the rank's own."""
        return self.own.names.nbytes + self.own.numbers.nbytes + self.own.odd.nbytes

    # From one process to the next

    def save(self) -> SavedPlain:
        """Return all of them, and who holds what."""
        slots = self._slots
        return pack(self._index.blocks, self._index.sets, *self.all(), slots.certain, slots.doubted)

    def claim_slots(self, saved: SavedPlain) -> None:
        """Have a slot for each place that was in use."""
        used = int(np.bitwise_or.reduce(np.frombuffer(saved.places, np.uint8), initial=0))
        for bit, tier in enumerate(TIERS):
            if used >> bit & (1 | 1 << DOUBT_BITS):
                self._slots.slot((tier, 0))
            if used >> bit & 1 << DOUBT_BITS:
                self._slots.doubt((tier, 0))

    def restore(self, saved: SavedPlain) -> Iterator[None]:
        """Hold what was saved; yield whenever the rank needs a table of its own first."""
        index = self._index
        names, keys, parents = (
            np.frombuffer(packed, "<u8").astype(np.uint64)
            for packed in (saved.names, saved.keys, saved.parents)
        )
        places = np.frombuffer(saved.places, np.uint8)
        # Each bit changes a block's set.
        most = int(np.unpackbits(places.reshape(-1, 1), axis=1).sum(axis=1).max(initial=1))
        done = 0
        while done < len(names):
            stop = min(done + STEP // most, len(names))
            self.reserve()
            with index.turn():
                done = restore(
                    index.blocks,
                    index.sets,
                    self.own,
                    names,
                    keys,
                    parents,
                    places,
                    done,
                    stop,
                    index.now(),
                )
            if done < stop:
                yield


def _places(entries: int) -> int:
    """Return the places of a rank's own table with room for so many names."""
    return int(entries * OWN_GROWTH / OWN_LOAD) + 16
