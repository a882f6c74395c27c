"""The contract of a block-to-pods index.

An index knows for each key which slots hold it. A slot stands for a tier and a cache group of a
rank, in one life of its engine (`indexer.index.slot`); the index itself does not know what a slot
stands for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from warmpath.indexer.index.orphans import AllOrphans
from warmpath.indexer.keys.key import Chain

Links = Sequence[tuple[int, int]]
"""Positions of keys that are not chained to the key listed before them, and the key that each is chained
to; 0 where it begins a prompt."""


class Stretch(NamedTuple):
    """Blocks `start` to `stop` (exclusive) of a prompt, all held by a slot that holds neither neighbour.

    A key names its whole prefix, so holders change at few depths: a prompt of thousands of blocks is
    one stretch, or a few, for each slot that holds anything of it.
    """

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class IndexStats:
    """The size of an index."""

    keys: int
    """Distinct keys with at least one live holder, or not yet swept."""
    entries: int
    """(key, live slot) pairs."""
    slots: int
    """Live slots that hold anything."""
    bytes: int = 0
    """Memory, estimated; 0 where the index does not estimate it."""
    max_bytes: int = 0
    """The bound of `bytes`; 0 for none."""
    evicted: int = 0
    """Keys given up to make room, since the start."""


class Index(Protocol):
    """The contract of every form of the index; `tests/conformance/test_index.py` tests all of them.

    One thread writes; each form states what other threads may do meanwhile. All writes are
    idempotent: adding held keys, removing keys that are not held, and dropping an empty slot change
    nothing.
    """

    waiting: AllOrphans
    """Stores of all ranks that wait for their parent; their bytes count in the index's."""

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:
        """Let `slot` hold `keys`, in the order of their chain.

        Each key is chained to the one before it, and the first begins a prompt, except at the positions
        in `links`. The index needs the chain to give up the deepest blocks of a prompt first. Where room
        is lacking it refuses no key, but gives up other keys (`take_losers`). A dropped slot may not be
        used again before it is swept.
        """

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`; another slot's hold on them is untouched."""

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing, at once for readers; its remains are swept later."""

    def sweep(self, budget: int) -> Iterable[int]:
        """Free the remains of dropped slots, looking at no more than `budget` keys.

        Returns the slots that are wholly swept by now and may be used again.
        """

    def take_losers(self) -> set[int]:
        """Return the slots that have lost keys to make room since the last call."""

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        """Return which slots hold which of `keys`; each slot's stretches are in order."""

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:
        """Return the stretches of a prompt's blocks, as `stretches` does for their keys.

        With `leading`, stretches behind a block that no slot holds may be left out.
        """

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds."""

    def stats(self) -> IndexStats:
        """Return the index's size."""
