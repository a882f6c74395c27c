"""What the process that followed the engines has left in memory, for the one that follows them after it.

The index is not repaired in place, as others read it meanwhile: each rank's names are taken out of the
arrays as they are saved to a file (`indexer.resolve.saved`), and restored into the other half. A rank is
to be doubted if a batch of it was being applied when its process was killed, or if some of its names are
not in memory: what its events prove, or its cache turning over, makes it exact again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.blocks import DEPTH, FREED, SET, TOP, Blocks
from warmpath.indexer.compiled.blocks.table import NUMBERS
from warmpath.indexer.compiled.memory import REBUILDING, VERSION, Memory
from warmpath.indexer.compiled.names.plain import MOST_GROUPS
from warmpath.indexer.compiled.names.restore import pack
from warmpath.indexer.compiled.steps import end
from warmpath.indexer.follow.stream_source import SavedRank
from warmpath.indexer.processes import rows
from warmpath.indexer.processes.rows import place_of, row_of
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.resolve.saved import SavedPlain
from warmpath.process.bytes import UNREADABLE

log = logging.getLogger(__name__)

KILLED = "the process that followed it was killed while it applied its events"
"""The reason for which a rank is in doubt in the process that goes on from there."""


@dataclass(frozen=True, slots=True)
class Heir:
    """A rank to go on from, and whether its blocks are in doubt."""

    saved: SavedRank
    is_doubted: bool


def inherited(memory: Memory) -> list[Heir]:
    """Return the ranks that a process has left in a half, which it does not write any more."""
    if memory.head[REBUILDING]:
        log.warning("the process that followed the engines was killed as it grew: all begin anew")
        return []
    if memory.head[VERSION] & 1:
        # Blocks are whole (`compiled.elsewhere`): readers need not look whether the writer lives.
        end(memory.head, VERSION)
    arrays = memory.named()
    index, slots = _Index(arrays), _slots(memory, len(arrays["counts"]))
    # Rows that were never written take no memory, and would if they were read.
    written = np.flatnonzero(memory.versions).tolist()
    return [heir for row in written if (heir := _heir(memory, index, slots, row))]


def _heir(
    memory: Memory,
    index: "_Index",
    slots: Mapping[tuple[int, int], dict[bool, dict[Spot, int]]],
    row: int,
) -> Heir | None:
    numbers = memory.rows[row].view("<i8")
    if not numbers[rows.GENERATION] or not numbers[rows.FACTS]:
        return None
    at = rows.SAVED_AT[int(numbers[rows.PLACE])]
    size = int.from_bytes(memory.rows[row, at : at + 8].tobytes(), "little")
    try:
        packed = memory.rows[row, at + 8 : at + 8 + size].tobytes()
        saved = msgspec.msgpack.decode(packed, type=SavedRank)
    except (ValueError, *UNREADABLE):
        return None  # a publisher's, or one without any batch yet
    following = int(numbers[rows.NEXT])
    if not following:
        return None
    digest = int(numbers.view("<u8")[rows.DIGEST])
    if following ^ digest != int(numbers.view("<u8")[rows.CHECK]):
        digest = 0  # killed between the two: it would show a restart of the engine that was none
    stream = replace(
        saved.stream, next=following, digests={following - 1: digest} if digest else {}
    )
    held = slots.get((row, int(numbers[rows.GENERATION]) % rows.GENERATIONS), {})
    certain, doubted = held.get(False, {}), held.get(True, {})
    own = None
    if count := int(numbers[rows.OWN]):
        own = (
            memory.view(int(numbers[rows.NAMES]), (count,), np.uint64),
            memory.view(int(numbers[rows.NUMBERS]), (count,), np.uint32),
        )
    resolver = saved.resolver
    odd = [*resolver.keys.values(), *(key for keys in resolver.earlier.values() for key in keys)]
    plain = index.plain(list(resolver.groups)[:MOST_GROUPS], certain, doubted, own, odd)
    return Heir(
        replace(saved, stream=stream, resolver=replace(resolver, plain=plain)),
        bool(numbers[rows.IS_AT_WORK] or numbers[rows.LACKS]),
    )


def _slots(memory: Memory, most: int) -> dict[tuple[int, int], dict[bool, dict[Spot, int]]]:
    """Return the slots of each row and generation: those of doubted blocks, and the others."""
    found: dict[tuple[int, int], dict[bool, dict[Spot, int]]] = {}
    for slot in np.flatnonzero(memory.places[:most]).tolist():
        word = int(memory.places[slot])
        place = place_of(word, "", 0)
        of_rank = found.setdefault(row_of(word), {})
        of_rank.setdefault(place.doubted, {})[place.tier, place.group] = slot
    return found


class _Index:
    """The arrays that were left."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        records, state = arrays["records"], arrays["state"]
        self._top = int(state[TOP])
        self._words = arrays["words"]
        self._blocks = Blocks(
            records=records,
            halves=records.view(np.uint32),
            quarters=records.view(np.uint16),
            names=arrays["names"],
            parents=arrays["parents"],
            by_key=arrays["by_key"],
            by_name=np.zeros(0, np.uint32),
            counts=arrays["counts"],
            state=state,
        )
        found = np.zeros(self._top, np.bool_)
        numbers = arrays["by_key"] & np.uint32(NUMBERS)
        found[numbers[numbers < self._top]] = True
        self._held: NDArray[np.uint32] = self._blocks.halves[: self._top, SET].copy()
        # A block that was just being freed is in no table any more, and its set is none.
        is_block = found & (self._blocks.quarters[: self._top, DEPTH] != FREED)
        self._held[~is_block | (self._held >= len(self._words))] = 0
        self._sets = int(self._held.max(initial=0)) + 1

    def plain(
        self,
        groups: list[int],
        certain: Mapping[Spot, int],
        doubted: Mapping[Spot, int],
        own: tuple[NDArray[np.uint64], NDArray[np.uint32]] | None,
        odd: Sequence[int],
    ) -> SavedPlain:
        """Return a rank's plain names, by its groups, its slots and its own names, if it has any."""
        has = np.zeros(self._sets, np.bool_)
        for slot in (*certain.values(), *doubted.values()):
            words = self._words[: self._sets, slot >> 6]
            has |= words >> np.uint64(slot & 63) & np.uint64(1) != 0
        has[0] = False
        holds = has[self._held]
        if own is not None:
            names, numbers = own
            there = (numbers != 0) & (numbers < self._top)
            names, numbers = names[there], numbers[there]
            there = holds[numbers]
            names, numbers = names[there], numbers[there]
        else:
            numbers = np.flatnonzero(holds).astype(np.uint32)
            names = self._blocks.names[numbers, 0]
            there = names != 0
            if odd:
                keys = self._blocks.records[numbers, 0]
                there &= ~np.isin(keys, np.array(odd, np.uint64))
            names, numbers = names[there], numbers[there]
        return pack(self._blocks, self._words, names, numbers, groups, certain, doubted)
