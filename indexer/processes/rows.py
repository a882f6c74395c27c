"""The rows of ranks, and the words of slots, in the memory that several processes have.

A row has three parts. `Facts` are for readers; the row's version tells them when these changed, and
whether they are half-written (`compiled.steps`). The other two are for the writer's successor
(`indexer.processes.heritage`): numbers that change with each batch, and a `SavedRank` without plain
names, in one of two places, which `PLACE` names once it is whole.
"""

from collections.abc import Mapping

import msgspec

from warmpath.indexer.compiled.memory import ROW_BYTES
from warmpath.indexer.engines.cache_groups import Group, Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.slot import Place
from warmpath.indexer.trust import Level

GENERATION, FACTS, IS_AT_WORK, LACKS, PLACE, NEXT, DIGEST, CHECK, NAMES, NUMBERS, OWN = range(11)
"""Words of a row: how often it was given to a rank; the bytes of its facts; whether a batch is being
applied; whether names are not saved; where the saved rank is; the sequence to be applied next, the
digest of the batch before it, and both combined to show that they belong together; where the rank's own
names and their blocks are, and how many places they have: 0 for none."""
FACTS_AT, FACTS_BYTES = 256, 8192 - 256
SAVED_AT = 8192, 8192 + (ROW_BYTES - 8192) // 2
SAVED_BYTES = (ROW_BYTES - 8192) // 2 - 8
"""The most bytes of a saved rank, which come behind their number."""

TIERS = list(Tier)
GENERATIONS = 1 << 14
_DOUBTED, _GROUP, _TIER, _ROW, _GENERATION = 1, 2, 33, 35, 50


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """A rank as other processes show it; as in `indexer.rank.Rank`."""

    pod: str
    number: int
    level: Level
    reason: str
    since: float
    is_connected: bool
    lost_at: float
    inexact_since: float
    groups: dict[int, tuple[str, int, int]]
    lookahead: bool
    sequence: int | None
    capacity: int
    in_use: int | None
    life: int
    lag_seconds: float
    lag_batches: int
    adapters: int
    blocks: dict[Tier, int]
    counts: dict[str, int]
    orphans: tuple[int, int] | None
    """Bytes that wait for their parent, and blocks dropped; None: it is not followed directly."""


def groups_of(layout: Layout) -> dict[int, tuple[str, int, int]]:
    """Return a layout's groups in the form of `Facts.groups`."""
    return {number: (one.kind, one.block_size, one.window) for number, one in layout.groups.items()}


def layout_of(facts: Facts) -> Layout:
    """Return the layout that facts tell."""
    groups: Mapping[int, Group] = {number: Group(*one) for number, one in facts.groups.items()}
    return Layout(groups, facts.lookahead)


def word_of(place: Place, row: int, generation: int) -> int:
    """Return a slot's place in one word, other than 0; the rank by its row."""
    return (
        1
        | place.doubted << _DOUBTED
        | place.group << _GROUP
        | TIERS.index(place.tier) << _TIER
        | row << _ROW
        | generation % GENERATIONS << _GENERATION
    )


def row_of(word: int) -> tuple[int, int]:
    """Return the row and its generation that a word names."""
    return word >> _ROW & (1 << 15) - 1, word >> _GENERATION


def place_of(word: int, pod: str, rank: int) -> Place:
    """Return the place of a word, given its rank."""
    return Place(
        pod,
        rank,
        TIERS[word >> _TIER & 3],
        0,
        word >> _GROUP & (1 << 31) - 1,
        bool(word >> _DOUBTED & 1),
    )
