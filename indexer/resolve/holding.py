"""The names that one place holds, how many copies of each, and the keys that they stand for.

A place is a tier and a cache group of a rank.
"""

from collections.abc import Iterable, Mapping

from warmpath.indexer.engines.event import EngineHash
from warmpath.indexer.resolve.saved import SavedHolding


class Holding:
    """Counts copies of each name and names of each key."""

    def __init__(self) -> None:
        self.copies: dict[EngineHash, int] = {}
        """How many copies of each name are held."""
        self.names: dict[int, EngineHash] = {}
        """A name of each key."""
        self._more: dict[int, list[EngineHash]] = {}
        """The other names of keys that several names stand for."""
        self.doubted: set[EngineHash] = set()
        """Names in doubt: held when events were missed, and not proven since."""
        self.thinned: set[EngineHash] = set()
        """Names whose last event was a removal, and that still have copies."""
        self.repeated: set[EngineHash] = set()
        """Names with a copy whose store may have been a hit (`indexer.resolve.groups`)."""
        self.certain = 0
        """The number of copies of all names that are not in doubt."""

    @property
    def certain_names(self) -> int:
        return len(self.copies) - len(self.doubted)

    def sole(self, key: int) -> EngineHash | None:
        """Return the only name of a key; None if it has none or several."""
        return None if key in self._more else self.names.get(key)

    def hold(self, name: EngineHash, keys: Iterable[int], *, may_be_hit: bool = False) -> list[int]:
        """Hold one more copy of a name; return the keys that this place did not hold before."""
        count = self.copies.get(name, 0)
        self.certain += 1
        if count:
            self.thinned.discard(name)
            if name in self.doubted:
                # The copies counted before may be gone; this copy is certain.
                self.doubted.discard(name)
                count = 0
            elif may_be_hit:
                self.repeated.add(name)
            self.copies[name] = count + 1
            return []
        self.copies[name] = 1
        return [key for key in keys if self._stand(name, key)]

    def _stand(self, name: EngineHash, key: int) -> bool:
        """Let a name stand for a key; return whether it is the key's first name."""
        if key in self.names:
            self._more.setdefault(key, []).append(name)
            return False
        self.names[key] = name
        return True

    def release(self, name: EngineHash, keys: Iterable[int]) -> list[int]:
        """Let one copy of a held name go; return the keys that this place no longer holds."""
        count = self.copies[name]
        if count > 1:
            self.copies[name] = count - 1
            if name not in self.doubted:
                self.certain -= 1
                self.thinned.add(name)
            return []
        return self.drop(name, keys)

    def drop(self, name: EngineHash, keys: Iterable[int]) -> list[int]:
        """Let every copy of a held name go; return the keys that this place no longer holds."""
        copies = self.copies.pop(name)
        if name not in self.doubted:
            self.certain -= copies
        self.doubted.discard(name)
        self.thinned.discard(name)
        self.repeated.discard(name)
        return [key for key in keys if self._leave(name, key)]

    def _leave(self, name: EngineHash, key: int) -> bool:
        """Let a name no longer stand for a key; return whether it was the key's last name."""
        more = self._more.get(key)
        if more is None:
            del self.names[key]
            return True
        if self.names[key] == name:
            self.names[key] = more.pop()
        else:
            more.remove(name)
        if not more:
            del self._more[key]
        return False

    def take(self, name: EngineHash, key: int, *, in_doubt: bool) -> None:
        """Add one copy of a name that the rank's other table held until now."""
        self.hold(name, (key,))
        if in_doubt:
            self.doubted.add(name)
            self.certain -= 1

    def restore(
        self,
        saved: SavedHolding,
        last: Mapping[EngineHash, int],
        earlier: Mapping[EngineHash, Iterable[int]],
    ) -> None:
        """Hold names that another process saved, given each name's last key and the keys before it."""
        copies = self.copies = saved.copies
        self.doubted = set(saved.doubted)
        self.thinned = set(saved.thinned)
        self.repeated = set(saved.repeated)
        self.certain = sum(copies.values()) - sum(map(copies.__getitem__, self.doubted))
        for name in copies:
            self._stand(name, last[name])
        for name in earlier.keys() & copies.keys():
            for key in earlier[name]:
                self._stand(name, key)

    def doubt(self) -> None:
        self.doubted = set(self.copies)
        self.thinned.clear()
        self.repeated.clear()
        self.certain = 0

    def one_copy_each(self) -> None:
        for name in self.copies.keys() - self.doubted:
            self.copies[name] = 1
        self.thinned.clear()
        self.repeated.clear()
        self.certain = len(self.copies) - len(self.doubted)

    def prove(self, name: EngineHash) -> bool:
        """Count a doubtful name as held again, with one copy. Return False if it was not in doubt."""
        if name not in self.doubted:
            return False
        self.doubted.remove(name)
        self.copies[name] = 1
        self.certain += 1
        return True
