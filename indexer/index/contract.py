"""The contract of a block-to-pods index.

An index knows for each key which slots hold it. Slots stand for one life of one rank's tier
(`indexer.index.slot`); what a slot means is no business of the index.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from indexer.keys.key import Chain

Links = Sequence[tuple[int, int]]
"""Where keys do not follow the one listed before: the position, and the key before it; 0 for none."""


class Stretch(NamedTuple):
    """Blocks `start` to `stop` (exclusive) of a prompt, all held by a slot; it holds neither neighbour.

    A key names its whole prefix, so holders change at few depths: a prompt of thousands of blocks is
    one stretch, or a few, for each slot that holds anything of it.
    """

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How much an index holds."""

    keys: int
    """Distinct keys with at least one live holder, or not yet swept."""
    entries: int
    """(key, live slot) pairs."""
    slots: int
    """Live slots that hold anything."""
    bytes: int = 0
    """What it takes, as far as it is reckoned."""
    max_bytes: int = 0
    """What it may take; 0 for no bound."""
    evicted: int = 0
    """Keys given up for want of room since the start."""


class Index(Protocol):
    """What every backend promises; `tests/conformance/test_index.py` runs on all of them.

    One thread writes; what other threads may do meanwhile is said by each backend. All calls are
    idempotent: adding what is held, removing what is not, and dropping an empty slot change nothing.
    """

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:
        """Let `slot` hold `keys`, in the order of their chain.

        Each follows the one before it, and the first begins a prompt; `links` says where that is not so.
        The deepest blocks of a prompt are given up first.
        A dropped slot may not be used again before it is swept. Nothing is refused for want of room:
        the index gives up other keys (`take_losers`).
        """

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`; another slot's hold on them is untouched."""

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing, at once for readers; what remains is swept later."""

    def sweep(self, budget: int) -> Iterable[int]:
        """Free the remains of dropped slots, looking at no more than `budget` keys.

        Returns the slots that are wholly swept by now and may be used anew.
        """

    def take_losers(self) -> set[int]:
        """Return the slots that lost keys for want of room since this was last asked."""

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        """Return who holds which of `keys`; each slot's stretches are in order."""

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:
        """Return the same for a prompt's blocks.

        With `leading`, stretches that begin behind a block that nobody holds may be left out.
        """

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds."""

    def stats(self) -> IndexStats:
        """Return the index's size."""

    def check(self) -> None:
        """Raise BrokenInvariantError where the index contradicts itself."""
