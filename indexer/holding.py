"""What one place holds: copies of names, and the keys that they stand for.

A place is a tier and a cache group of a rank.
"""

from collections import Counter
from collections.abc import Iterable

from indexer.engines.event import EngineHash
from indexer.index import BrokenInvariantError


class Holding:
    """Counts copies of each name and names of each key."""

    def __init__(self) -> None:
        self.copies: dict[EngineHash, int] = {}
        """How often each live name is held."""
        self.names: dict[int, int] = {}
        """How many live names stand for each key."""
        self.doubted: set[EngineHash] = set()
        """Names of which nothing is certain since something was missed."""
        self.thinned: set[EngineHash] = set()
        """Names that were last removed, and are held because they had been announced more often."""
        self.certain = 0
        """Copies of all names but those in doubt."""

    @property
    def certain_names(self) -> int:
        """How many names are held, but for those in doubt."""
        return len(self.copies) - len(self.doubted)

    def hold(self, name: EngineHash, keys: Iterable[int]) -> list[int]:
        """Hold one copy more of a name; return the keys that are new here."""
        count = self.copies.get(name, 0)
        self.certain += 1
        if count:
            self.thinned.discard(name)
            if name in self.doubted:
                # What was counted before may be gone; this copy is certain.
                self.doubted.discard(name)
                count = 0
            self.copies[name] = count + 1
            return []
        self.copies[name] = 1
        fresh = []
        for key in keys:
            standing = self.names.get(key, 0)
            self.names[key] = standing + 1
            if not standing:
                fresh.append(key)
        return fresh

    def release(self, name: EngineHash, keys: Iterable[int]) -> list[int]:
        """Let one copy of a held name go; return the keys that are gone from here."""
        count = self.copies[name]
        if count > 1:
            self.copies[name] = count - 1
            if name not in self.doubted:
                self.certain -= 1
                self.thinned.add(name)
            return []
        return self.drop(name, keys)

    def drop(self, name: EngineHash, keys: Iterable[int]) -> list[int]:
        """Let every copy of a held name go; return the keys that are gone from here."""
        copies = self.copies.pop(name)
        if name not in self.doubted:
            self.certain -= copies
        self.doubted.discard(name)
        self.thinned.discard(name)
        gone = []
        for key in keys:
            self.names[key] -= 1
            if not self.names[key]:
                del self.names[key]
                gone.append(key)
        return gone

    def take(self, name: EngineHash, key: int, *, in_doubt: bool) -> None:
        """Hold one copy of a name that was held elsewhere."""
        self.hold(name, (key,))
        if in_doubt:
            self.doubted.add(name)
            self.certain -= 1

    def restore(
        self,
        copies: dict[EngineHash, int],
        doubted: Iterable[EngineHash],
        thinned: Iterable[EngineHash],
        keys: Iterable[int],
    ) -> None:
        """Hold what another process held; `keys` are those of every name."""
        self.copies = copies
        self.doubted = set(doubted)
        self.thinned = set(thinned)
        self.certain = sum(copies.values()) - sum(map(copies.__getitem__, self.doubted))
        self.names = dict(Counter(keys))

    def doubt(self) -> None:
        """Take note that any name may be gone."""
        self.doubted = set(self.copies)
        self.thinned.clear()
        self.certain = 0

    def one_copy_each(self) -> None:
        """Take every name that is not in doubt to be held once."""
        for name in self.copies.keys() - self.doubted:
            self.copies[name] = 1
        self.thinned.clear()
        self.certain = len(self.copies) - len(self.doubted)

    def prove(self, name: EngineHash) -> bool:
        """Take note that one copy of a name is certain; False where that was so before."""
        if name not in self.doubted:
            return False
        self.doubted.remove(name)
        self.copies[name] = 1
        self.certain += 1
        return True

    def check(self, keys: dict[EngineHash, tuple[int, ...]]) -> None:
        """Raise BrokenInvariantError where the counts do not add up, given each name's keys."""
        if min(self.copies.values(), default=1) < 1:
            raise BrokenInvariantError("a name without copies is kept")
        if not self.doubted <= self.copies.keys():
            raise BrokenInvariantError("a name that is not held is in doubt")
        if not self.thinned <= self.copies.keys() - self.doubted:
            raise BrokenInvariantError("a name that was removed last is not held, or in doubt")
        certain = (count for name, count in self.copies.items() if name not in self.doubted)
        if self.certain != sum(certain):
            raise BrokenInvariantError("the copies do not add up")
        names: dict[int, int] = {}
        for name in self.copies:
            for key in keys[name]:
                names[key] = names.get(key, 0) + 1
        if names != self.names:
            raise BrokenInvariantError("the names of the keys do not add up")
