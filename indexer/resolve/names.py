"""The names that a rank's resolver keeps: the keys of each, and the places that hold it.

`Elsewhere` is the contract with the keeper of most names (`indexer.compiled.names`). `Roots` has the
keys before a prompt's first block, by adapter, salt and block size.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from warmpath.indexer.engines.event import EngineHash
from warmpath.indexer.keys.key import Keyspace
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.resolve.holding import Holding
from warmpath.indexer.resolve.saved import SavedHolding, SavedResolver


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


class Names:
    """The keys of an engine's block names, by tier and group. `elsewhere` has the plain names."""

    def __init__(self, elsewhere: Elsewhere | None) -> None:
        self.keys: dict[EngineHash, int] = {}
        """The last key of every name."""
        self.earlier: dict[EngineHash, tuple[int, ...]] = {}
        """The keys before the last, of names of several blocks (an offload tier's chunks)."""
        self.above: dict[EngineHash, int] = {}
        """The key of the block before each name's first, except at the beginning of a prompt."""
        self.holdings: defaultdict[Spot, Holding] = defaultdict(Holding)
        self._elsewhere = elsewhere

    def clear(self) -> None:
        self.keys.clear()
        self.earlier.clear()
        self.above.clear()
        self.holdings.clear()

    def keys_of(self, name: EngineHash) -> tuple[int, ...]:
        return (*self.earlier.get(name, ()), self.keys[name])

    def key_above(self, name: EngineHash) -> int:
        """Return the key before the first key of a name; 0 for none, or if no place holds that key."""
        above = self.above.get(name, 0)
        return above if above and self.is_held(above) else 0

    def is_held(self, key: int) -> bool:
        return any(key in holding.names for holding in self.holdings.values())

    def copies(self, spot: Spot) -> dict[EngineHash, int]:
        holding = self.holdings.get(spot)
        return holding.copies if holding else {}

    def certain(self, spot: Spot, names: Sequence[EngineHash]) -> int:
        """Return how many of `names` a place holds, not counting names in doubt."""
        holding = self.holdings.get(spot)
        if holding is None:
            return 0
        return sum(name in holding.copies and name not in holding.doubted for name in names)

    def chain(
        self,
        names: Sequence[EngineHash],
        above: int | None,
        keys: Sequence[int],
        ratio: int,
        gone: Collection[int],
    ) -> list[EngineHash]:
        """Let each name stand for the next `ratio` of the keys; leave out the names at positions `gone`.

        Return the names that are not left out. A name that is known keeps its keys. `above` is the key
        before `keys`, None where a prompt begins.
        """
        kept = []
        for position, (name, last) in enumerate(zip(names, keys[ratio - 1 :: ratio], strict=True)):
            if position not in gone:
                kept.append(name)
                if name not in self.keys:
                    self.keys[name] = last
                    if ratio > 1:
                        begin = position * ratio
                        self.earlier[name] = tuple(keys[begin : begin + ratio - 1])
                    if above is not None:
                        self.above[name] = above
            above = last
        return kept

    def drop(self, spot: Spot, names: Iterable[EngineHash]) -> list[int]:
        """Let a place hold no copy of these names, which it holds; return the keys that it loses."""
        holding = self.holdings[spot]
        gone: list[int] = []
        for name in names:
            gone += holding.drop(name, self.keys_of(name))
            self.forget_unheld(name)
        return gone

    def forget_unheld(self, name: EngineHash) -> None:
        if any(name in holding.copies for holding in self.holdings.values()):
            return
        if self._elsewhere is not None:
            self._elsewhere.forgotten(name, self.keys_of(name))
        del self.keys[name]
        self.earlier.pop(name, None)
        self.above.pop(name, None)

    def doubt(self) -> None:
        for holding in self.holdings.values():
            holding.doubt()

    def prove_prefix(self, spot: Spot, name: EngineHash) -> None:
        """End the doubt about a block that a request holds, and about the prefix before it.

        It stops where several names of the place stand for one key: any of them may be gone.
        """
        holding = self.holdings.get(spot)
        current: EngineHash | None = name
        while holding and current is not None and holding.prove(current):
            above = self.above.get(current, 0)
            if self._elsewhere is not None:
                above = self._elsewhere.prove(spot, current, above)
            current = holding.sole(above)

    def places(self) -> dict[Spot, Collection[int]]:
        """Return the keys that each place holds, as views that change with them."""
        return {spot: holding.names.keys() for spot, holding in self.holdings.items()}

    def held(self) -> dict[Spot, set[int]]:
        """Return the keys that each place holds, as copies that do not change."""
        return {spot: set(keys) for spot, keys in self.places().items()}

    def chains(self) -> dict[Spot, tuple[list[int], list[tuple[int, int]]]]:
        """Return the keys that each place holds, and their links (`index.contract.Links`)."""
        known, aboves = self.keys, self.above
        found: dict[Spot, tuple[list[int], list[tuple[int, int]]]] = {}
        for spot, holding in self.holdings.items():
            links: list[tuple[int, int]] = []
            if self.earlier or len(holding.names) != len(holding.copies):
                # Where names have several keys, or keys several names, the order is only roughly known.
                found[spot] = list(holding.names), links
                continue
            keys = [known[name] for name in holding.copies]
            before = 0
            for at, (name, key) in enumerate(zip(holding.copies, keys, strict=True)):
                if aboves.get(name, 0) != before:
                    above = self.key_above(name)
                    if at or above:
                        links.append((at, above))
                before = key
            found[spot] = keys, links
        return found

    def save(self) -> list[SavedHolding]:
        return [
            SavedHolding(
                *spot, one.copies, list(one.doubted), list(one.thinned), list(one.repeated)
            )
            for spot, one in self.holdings.items()
        ]

    def restore(self, saved: SavedResolver) -> None:
        self.keys, self.earlier, self.above = saved.keys, saved.earlier, saved.above
        for one in saved.holdings:
            holding = self.holdings[one.tier, one.group] = Holding()
            holding.restore(one, self.keys, self.earlier)


MOST = 4096
"""The most roots remembered (adapters times salts); past that all are forgotten and computed again."""


class Roots:
    """Remembers one model's roots, the keys before a prompt's first block, for one hash seed."""

    def __init__(self, model: str, hash_seed: str) -> None:
        self._model = model
        self._hash_seed = hash_seed
        self._roots: dict[tuple[str, str, int], int] = {}
        self.adapters: set[str] = set()
        """The adapters of the remembered roots."""

    def known(self, lora: str, cache_salt: str, size: int) -> int | None:
        return self._roots.get((lora, cache_salt, size))

    def root(self, lora: str, cache_salt: str, size: int) -> int:
        root = self.known(lora, cache_salt, size)
        if root is None:
            if len(self._roots) >= MOST:
                self._roots.clear()
                self.adapters.clear()
            if lora:
                self.adapters.add(lora)
            keyspace = Keyspace(
                model=self._model, hash_seed=self._hash_seed,
                block_size=size, lora=lora, cache_salt=cache_salt,
            )  # fmt: skip
            root = self._roots[lora, cache_salt, size] = keyspace.root()
        return root
