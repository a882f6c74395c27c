"""The odd names of one rank by the keys that they stand for, and the changes not yet in the arrays."""

from collections.abc import Iterable, Mapping, Sequence

from warmpath.indexer.engines.event import EngineHash

Marks = tuple[list[int], list[int]]
"""Words that became odd, and words that are no longer odd."""


class NamesByKey:
    """The odd names of each key that has odd names."""

    def __init__(self) -> None:
        self._names: dict[int, list[EngineHash]] = {}
        self._changed: set[EngineHash] = set()
        """Names that became odd, or ceased to be, since `take_changed` was last called."""
        self._changed_keys: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._names

    def of(self, key: int) -> Sequence[EngineHash]:
        return self._names.get(key, ())

    def add(self, name: EngineHash, keys: Iterable[int]) -> None:
        """Let an odd name stand for keys."""
        self._changed.add(name)
        for key in keys:
            self._changed_keys.add(key)
            names = self._names.setdefault(key, [])
            if name not in names:
                names.append(name)

    def discard(self, name: EngineHash, keys: Iterable[int]) -> None:
        """Let a name stand for keys no longer."""
        self._changed.add(name)
        for key in keys:
            self._changed_keys.add(key)
            names = self._names[key]
            names.remove(name)
            if not names:
                del self._names[key]

    def clear(self) -> None:
        """Forget every name, and every change."""
        self._names.clear()
        self._changed.clear()
        self._changed_keys.clear()

    def take_changed(self, odd: Mapping[EngineHash, object]) -> tuple[Marks, Marks]:
        """Return the names, and the keys, to mark as odd or as odd no more since the last call.

        `odd` has all odd names.
        """
        marks: tuple[Marks, Marks] = ([], []), ([], [])
        if not self._changed and not self._changed_keys:
            return marks
        names, self._changed = self._changed, set()
        keys, self._changed_keys = self._changed_keys, set()
        for name in names:
            marks[0][name not in odd].append(name)
        for key in keys:
            marks[1][key not in self._names].append(key)
        return marks
