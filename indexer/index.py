"""The contract of a block-to-pods index.

An index knows for each key which slots hold it. Slots stand for one life of one rank's tier
(`indexer.slot`); what a slot means is no business of the index.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Run(NamedTuple):
    """Blocks `start` to `stop` (exclusive) of a prompt, all held by the same set of slots.

    A key names its whole prefix, so holder sets change at few depths: a prompt of thousands of
    blocks is a handful of runs.
    """

    start: int
    stop: int
    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How much an index holds."""

    keys: int
    """Distinct keys with at least one live holder, or not yet swept."""
    entries: int
    """(key, live slot) pairs."""
    slots: int
    """Live slots that hold anything."""


class BrokenInvariantError(Exception):
    """A stateful part contradicts itself: a bug of ours, never of a peer's."""


class Index(Protocol):
    """What every backend promises; `tests/conformance/test_index.py` runs on all of them.

    Calls are made from one thread at a time. All are idempotent: adding what is held, removing what
    is not, and dropping an empty slot change nothing.
    """

    def add(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` hold `keys`. A dropped slot may not be used again before it is swept."""

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`; another slot's hold on them is untouched."""

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing, at once for readers; what remains is swept later."""

    def sweep(self, budget: int) -> Iterable[int]:
        """Free the remains of dropped slots, looking at no more than `budget` keys.

        Returns the slots that are wholly swept by now and may be used anew.
        """

    def holders(self, keys: Sequence[int]) -> list[Run]:
        """Return the runs that cover `keys` from the first to the last, in order.

        Neighbouring runs differ in their slots; blocks that nobody holds are runs of the empty set.
        """

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds."""

    def stats(self) -> IndexStats:
        """Return the index's size."""

    def check(self) -> None:
        """Raise BrokenInvariantError where the index contradicts itself."""
