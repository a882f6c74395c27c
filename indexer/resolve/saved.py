"""A rank's names as one process saves them for the next.

Plain names (`indexer.compiled.names.names`) are saved as arrays, so that a million of them are written
and read in a moment; the pure resolver reads them as if they had been saved one by one (`one_by_one`).
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from warmpath.indexer.engines.cache_groups import Group
from warmpath.indexer.engines.event import EngineHash, Tier
from warmpath.indexer.keys.key import WORD_BYTES, unpack_words
from warmpath.indexer.keys.segment import SavedSegments

DOUBT_BITS = 4
"""How many low bits of a byte of `SavedPlain.places` are for tiers; the bits above are for doubt."""


class SavedHolding(msgspec.Struct, frozen=True, array_like=True):
    """The names that one place holds (`indexer.resolve.holding.Holding`)."""

    tier: Tier
    group: int
    copies: dict[EngineHash, int]
    doubted: list[EngineHash]
    thinned: list[EngineHash] = []
    repeated: list[EngineHash] = []


class SavedPlain(msgspec.Struct, frozen=True):
    """Plain names in arrays, parents before their children. Raises ValueError where lengths differ."""

    tiers: list[Tier]
    names: bytes
    """The names, 8 bytes each, little-endian; `keys` and `parents` have the same form."""
    keys: bytes
    parents: bytes
    """The parents' keys; 0 where a name has no known parent."""
    places: bytes
    """For each of `groups`, a byte for each name: a bit for each of `tiers` that holds it there, and
    `DOUBT_BITS` above it the bit of a tier that holds it in doubt."""
    groups: list[int]

    def __post_init__(self) -> None:
        size = len(self.names)
        places = WORD_BYTES * len(self.places)
        if not size == len(self.keys) == len(self.parents) or size * len(self.groups) != places:
            raise ValueError("the arrays of plain names differ in length")
        if len(self.tiers) > DOUBT_BITS:
            raise ValueError(f"there are more than {DOUBT_BITS} tiers")


class SavedResolver(msgspec.Struct, frozen=True):
    """A resolver's names as one process saves them for the next. Orphans are not saved."""

    groups: dict[int, Group]
    lookahead: bool
    firm: list[int]
    stored_since_doubt: int
    keys: dict[EngineHash, int]
    earlier: dict[EngineHash, tuple[int, ...]]
    above: dict[EngineHash, int]
    """The key of the block before each name's first, except at the beginning of a prompt."""
    holdings: list[SavedHolding]
    plain: SavedPlain | None = None
    segments: SavedSegments | None = None
    parted: list[int] = []
    """Groups that have announced blocks of more than one size."""
    released_since_doubt: int = 0
    all_in_doubt: bool = True

    def one_by_one(self) -> "SavedResolver":
        if self.plain is None:
            return self
        names, keys = unpack_words(self.plain.names), unpack_words(self.plain.keys)
        above = zip(names, unpack_words(self.plain.parents), strict=True)
        return replace(
            self,
            keys={**self.keys, **dict(zip(names, keys, strict=True))},
            above={**self.above, **{name: key for name, key in above if key}},
            holdings=_joined(self.holdings, self.plain, names),
            plain=None,
        )


def _joined(
    holdings: Iterable[SavedHolding], plain: SavedPlain, names: Sequence[EngineHash]
) -> list[SavedHolding]:
    found = {(one.tier, one.group): one for one in holdings}
    for row, group in enumerate(plain.groups):
        places = plain.places[row * len(names) : (row + 1) * len(names)]
        held_at = list(zip(names, places, strict=True))
        for bit, tier in enumerate(plain.tiers):
            in_doubt = 1 << bit + DOUBT_BITS
            doubted = [name for name, held in held_at if held & in_doubt]
            here = [name for name, held in held_at if held & (in_doubt | 1 << bit)]
            if here:
                one = found.get((tier, group)) or SavedHolding(tier, group, {}, [])
                copies = {**one.copies, **dict.fromkeys(here, 1)}
                found[tier, group] = replace(one, copies=copies, doubted=one.doubted + doubted)
    return list(found.values())
