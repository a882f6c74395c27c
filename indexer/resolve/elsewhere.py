"""The seam between a resolver and whoever keeps most of the rank's names (`indexer.compiled.names`)."""

from collections.abc import Iterable
from typing import Protocol

from indexer.engines.event import EngineHash
from indexer.resolve.change import Spot


class Elsewhere(Protocol):
    """Names of a rank that its resolver does not keep itself. Each name is kept on one side only."""

    def fetch(self, names: Iterable[EngineHash], keys: Iterable[int]) -> None:
        """Hand these names, and the names that stand for these keys, over to the resolver."""

    def learned(self, names: Iterable[EngineHash]) -> None:
        """Take note that a store with these names was resolved."""

    def forgotten(self, name: EngineHash, keys: Iterable[int]) -> None:
        """Take note that the resolver has forgotten a name, which stood for these keys."""

    def prove(self, spot: Spot, name: EngineHash, above: int) -> int:
        """Prove in a place the blocks from key `above` on upwards, as far as their names are kept here.

        `name` is the resolver's name below them, proven just now. Return the key from which the resolver
        goes on; 0 for none.
        """

    def count(self) -> None:
        """Add to the resolver's counts what was stored and removed without it."""
