"""The contract of a resolver with the keeper of most of the rank's names (`indexer.compiled.names`)."""

from collections.abc import Iterable
from typing import Protocol

from warmpath.indexer.engines.event import EngineHash
from warmpath.indexer.resolve.change import Spot


class Elsewhere(Protocol):
    """Names of a rank that its resolver does not keep itself. Each name is kept on one side only."""

    def fetch(self, names: Iterable[EngineHash], keys: Iterable[int]) -> None:
        """Hand these names, and the names that stand for these keys, over to the resolver."""

    def learned(self, names: Iterable[EngineHash]) -> None:
        """Record that a store with these names was resolved."""

    def forgotten(self, name: EngineHash, keys: Iterable[int]) -> None:
        """Record that the resolver has forgotten a name, which stood for these keys."""

    def prove(self, spot: Spot, name: EngineHash, above: int) -> int:
        """Take a place's blocks out of doubt, from key `above` back to the prompt's beginning.

        Stop at the first block that is not in doubt, or whose name is not kept here. `name` is the
        resolver's name of the block after them, which an event proved just now. Return the key from
        which the resolver goes on, 0 for none.
        """

    def count(self) -> None:
        """Add the blocks that were stored and removed without the resolver to its counts."""
