"""The trie store: texts as paths of slices, compared byte for byte.

It keeps the text, so nothing rests on a digest, and what is given up at the bound are always ends of
paths: nothing is ever kept that cannot be found. It takes about twice the room of `prefixstore.lru`
and more time a slice.
"""

from collections import OrderedDict
from collections.abc import Sequence

import pygtrie

from prefixstore.store import BrokenInvariantError, Entry, StoreStats, relabel

Path = tuple[bytes, ...]

NODE_BYTES = 460
"""What a node costs beside its slice, tokens and keys; measured like `lru.ENTRY_BYTES`."""


class TrieStore:
    """Holds at most `max_bytes`; past it, the ends of the paths that were used least recently go."""

    def __init__(self, max_bytes: int) -> None:
        self.stats = StoreStats()
        self._max_bytes = max_bytes
        self._trie: pygtrie.Trie[Path, Entry] = pygtrie.Trie()
        self._leaves: OrderedDict[Path, None] = OrderedDict()
        """The ends of all paths, the one used last at the end."""

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the leading slices that are known."""
        path = tuple(slices)
        found = [step.value for step in self._trie.prefixes(path)]
        end = path[: len(found)]
        if end in self._leaves:
            self._leaves.move_to_end(end)
        known = sum(map(len, end))
        self.stats.hit_bytes += known
        self.stats.missed_bytes += sum(map(len, path)) - known
        return found

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        """Remember the entries of a text's leading slices."""
        path = tuple(slices[: len(entries)])
        end = 0
        # What is kept was found on this very path, and is not looked for again.
        while end < len(path) and entries[end].is_kept:
            end += 1
        for entry in entries[end:]:
            end += 1
            if self._trie.setdefault(path[:end], entry) is entry:
                self._leaves.pop(path[: end - 1], None)
                self._leaves[path] = None
                entry.is_kept = True
                self.stats.bytes += _bytes(path[end - 1], entry)
                self.stats.entries += 1
        if path in self._leaves:
            self._leaves.move_to_end(path)
        self._make_room()

    def keep_keys(self, entries: Sequence[Entry], label: object, keys: Sequence[bytes]) -> None:
        """Remember each entry's block keys."""
        self.stats.bytes += relabel(entries, label, keys)
        self._make_room()

    def _make_room(self) -> None:
        stats = self.stats
        while stats.bytes > self._max_bytes:
            path, _ = self._leaves.popitem(last=False)
            while path and stats.bytes > self._max_bytes and not self._trie.has_subtrie(path):
                entry = self._trie.pop(path)
                entry.is_kept = False
                stats.bytes -= _bytes(path[-1], entry)
                stats.entries -= 1
                stats.evictions += 1
                path = path[:-1]
            if path and not self._trie.has_subtrie(path):
                self._leaves[path] = None
                self._leaves.move_to_end(path, last=False)

    def check(self) -> None:
        """Raise BrokenInvariantError where bytes or leaves do not add up, or the bound is broken."""
        total = sum(_bytes(path[-1], entry) for path, entry in self._trie.items())
        if total != self.stats.bytes or len(self._trie) != self.stats.entries:
            raise BrokenInvariantError("the store's bytes do not add up")
        leaves = {path for path in self._trie.keys() if not self._trie.has_subtrie(path)}  # noqa: SIM118  its own type
        if leaves != self._leaves.keys():
            raise BrokenInvariantError("the ends of paths do not add up")
        if total > self._max_bytes:
            raise BrokenInvariantError("the store is past its bound")


def _bytes(piece: bytes, entry: Entry) -> int:
    return NODE_BYTES + len(piece) + len(entry.tokens) + len(entry.keys)
