"""Changes of the keys in a rank's places: a resolver finds them, an index or a journal takes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Links

Spot = tuple[Tier, int]
"""A tier and a cache group: one place in which a rank holds blocks."""


@dataclass(frozen=True, slots=True)
class Added:
    """A place holds these keys from now on."""

    spot: Spot
    keys: list[int]
    segments: Sequence[int] = ()
    """The segment of each key, where segments are kept (`Resolver.segments`)."""
    links: Links = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """A place no longer holds these keys."""

    spot: Spot
    keys: list[int]
    segments: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Emptied:
    """The rank holds nothing anywhere."""


Change = Added | Gone | Emptied
