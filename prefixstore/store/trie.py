"""The trie store: texts as paths of slices, compared byte for byte.

It keeps the text, so no digest can collide, and it evicts only the ends of paths, so every entry that
it keeps can be found. It takes one and a half times the memory of `prefixstore.store.lru`, and more
time per slice.
"""

from collections import OrderedDict
from collections.abc import Sequence

import pygtrie

from warmpath.prefixstore.store.contract import Entry, PrefixStore

Path = tuple[bytes, ...]

NODE_BYTES = 460
"""Bytes of memory per node besides its slice, tokens and keys; measured like `lru.ENTRY_BYTES`."""

LEAF_BYTES = 260
"""Bytes of memory per end of a path, in addition to 8 bytes per slice of the path."""


class TrieStore(PrefixStore):
    """A store of at most `max_bytes`; it evicts the ends of the least recently used paths."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._trie: pygtrie.Trie[Path, Entry] = pygtrie.Trie()
        self._leaves: OrderedDict[Path, None] = OrderedDict()
        """The ends of all paths, in order of use, the most recent last."""

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        path = tuple(slices)
        found = [step.value for step in self._trie.prefixes(path)]
        end = path[: len(found)]
        if end in self._leaves:
            self._leaves.move_to_end(end)
        self.stats.looked_up(path, len(found))
        return found

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        path = tuple(slices[: len(entries)])
        if not path:
            return
        # The whole path in one call, since each walk begins at the root; inner nodes get entries below.
        self._trie.setdefault(path, entries[-1])
        steps = iter(self._trie.walk_towards(path))
        next(steps)
        above: Entry | None = None
        own: list[bytes] = []
        for step, piece, entry in zip(steps, path, entries, strict=True):
            known = step.setdefault(entry)
            if not known.is_kept:
                if above is not None:
                    if not above.children:
                        self._drop_leaf(tuple(own))
                    above.children += 1
                known.piece, known.children, known.is_kept = piece, 0, True
                self.stats.bytes += _bytes(known)
                self.stats.entries += 1
            # The trie's own slice objects, so that texts share them as they share nodes.
            own.append(known.piece)
            above = known
        leaf = tuple(own)
        if above is not None and not above.children:
            if leaf not in self._leaves:
                self.stats.bytes += _leaf_bytes(leaf)
            self._leaves[leaf] = None
            self._leaves.move_to_end(leaf)
        self._make_room()

    def _make_room(self) -> None:
        stats = self.stats
        while stats.bytes > self._max_bytes:
            path, _ = self._leaves.popitem(last=False)
            stats.bytes -= _leaf_bytes(path)
            entries = [step.value for step in self._trie.prefixes(path)]
            while entries and not entries[-1].children:
                if len(entries) < len(path) and stats.bytes <= self._max_bytes:
                    break
                entry = entries.pop()
                entry.is_kept = False
                stats.bytes -= _bytes(entry)
                stats.entries -= 1
                stats.evictions += 1
                if entries:
                    entries[-1].children -= 1
            del self._trie[path[: len(entries) + 1] :]
            if entries and not entries[-1].children:
                rest = path[: len(entries)]
                self._leaves[rest] = None
                self._leaves.move_to_end(rest, last=False)
                stats.bytes += _leaf_bytes(rest)

    def _drop_leaf(self, path: Path) -> None:
        if path in self._leaves:
            del self._leaves[path]
            self.stats.bytes -= _leaf_bytes(path)


def _bytes(entry: Entry) -> int:
    return NODE_BYTES + len(entry.piece) + len(entry.tokens) + len(entry.keys)


def _leaf_bytes(path: Path) -> int:
    return LEAF_BYTES + 8 * len(path)
