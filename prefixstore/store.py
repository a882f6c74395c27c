"""Prefix stores, which remember the tokens of beginnings of texts: the contract, and two kinds.

A text comes as slices (`prefixstore.cuts.proof`). For each slice, together with everything before it, a
store remembers the tokens up to the last cut before its end, and the block keys that those tokens
complete. A label names the chain of keys (keyspace and block size) that they belong to.

`LruStore` keeps digests in place of texts. `TrieStore` compares the texts byte for byte, so no digest
can collide, and evicts only the ends of paths, so every entry that it keeps can be found. It takes one
and a half times the memory, and more time per slice.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import cast

import pygtrie
import xxhash


class Entry:
    """The tokens of one slice of a text, and the keys of blocks that end there.

    After `put` only the store may change it.
    """

    __slots__ = ("children", "is_kept", "keys", "label", "piece", "tail", "tokens")

    def __init__(self, tokens: bytes, tail: int) -> None:
        self.tokens = tokens
        """Packed token ids from the previous slice's cut to this slice's."""
        self.tail = tail
        """Bytes between this slice's cut and its end, which no token covers yet."""
        self.piece = b""
        """The slice itself, in a store that keeps texts."""
        self.children = 0
        """Number of entries directly after this one, in a store that counts them."""
        self.label: object = None
        """The chain of keys that `keys` belong to."""
        self.keys = b""
        """Keys of the blocks that end within these tokens, 8 bytes each."""
        self.is_kept = False
        """Whether a store has the entry and counts its bytes."""


@dataclass(slots=True)
class StoreStats:
    """Size and counters of a store."""

    bytes: int = 0
    entries: int = 0
    hit_bytes: int = 0
    """Bytes of looked-up texts that the store knew."""
    missed_bytes: int = 0
    """Bytes of looked-up texts that it did not know."""
    evictions: int = 0

    def looked_up(self, slices: Sequence[Sized], found: int) -> None:
        """Count a look-up of a text's slices, the first `found` of them known."""
        known = sum(map(len, slices[:found]))
        self.hit_bytes += known
        self.missed_bytes += sum(map(len, slices)) - known


class PrefixStore(ABC):
    """The contract of stores; `tests/conformance/test_prefix_store.py` tests all of them.

    Each tokenizer has a store of its own. Calls are made from one thread at a time.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds the memory, keys and tables included."""
        self.stats = StoreStats()
        """The store's size and counters."""
        self._max_bytes = max_bytes

    @abstractmethod
    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the leading slices that are known; empty if the first is not."""

    @abstractmethod
    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        """Remember the entries of a text's leading slices; one that the store has is not replaced."""

    @abstractmethod
    def _make_room(self) -> None:
        """Evict entries until no more than `max_bytes` are used."""

    def keep_keys(self, entries: Sequence[Entry], label: object, keys: Sequence[bytes]) -> None:
        """Remember `keys`, one item for each entry, under `label`; they replace another label's."""
        for entry, own in zip(entries, keys, strict=True):
            if entry.is_kept:
                self.stats.bytes += len(own) - len(entry.keys)
            entry.label, entry.keys = label, own
        self._make_room()


ENTRY_BYTES = 480
"""Bytes of memory per entry in addition to its tokens and keys.

Measured on CPython 3.11 as the growth of the process's memory over a million entries, and rounded up,
so that the bound is kept.
"""


class LruStore(PrefixStore):
    """A hash table of at most `max_bytes`, from the digest of a text's beginning to its last entry.

    The digest is chained over the slices (XXH3, 128 bits, over the previous digest and the slice). Its
    `seed`, a random number of 64 bits, changes what every lane is mixed with, so nobody can prepare two
    texts with one digest; the chance of an accidental collision is 2^-64 at four billion entries. The
    least recently used entries are evicted, a text's last slices first.
    """

    def __init__(self, max_bytes: int, seed: int) -> None:
        super().__init__(max_bytes)
        self._seed = seed
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._last: tuple[Sequence[bytes], list[bytes]] = ((), [])
        """The last slices and their digests: a `find` that misses is followed by a `put` of them."""

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        digests = self._digests(slices)
        looked: list[Entry | None] = list(map(self._entries.get, digests))
        count = looked.index(None) if None in looked else len(looked)
        found = cast("list[Entry]", looked[:count])
        self._touch(digests[:count])
        self.stats.looked_up(slices, count)
        return found

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        used = []
        for entry, digest in zip(entries, self._digests(slices), strict=False):
            if digest not in self._entries:
                self._entries[digest] = entry
                entry.is_kept = True
                self.stats.bytes += _bytes_of(entry)
            used.append(digest)
        self._touch(used)
        self._make_room()

    def _make_room(self) -> None:
        stats = self.stats
        while stats.bytes > self._max_bytes:
            _, entry = self._entries.popitem(last=False)
            entry.is_kept = False
            stats.bytes -= _bytes_of(entry)
            stats.evictions += 1
        stats.entries = len(self._entries)

    def _touch(self, digests: Sequence[bytes]) -> None:
        # A text's beginning becomes the most recent, so that it outlives the slices after it.
        move = self._entries.move_to_end
        for digest in reversed(digests):
            move(digest)

    def _digests(self, slices: Sequence[bytes]) -> list[bytes]:
        if slices is not self._last[0]:
            digest_of, seed = xxhash.xxh3_128_digest, self._seed
            digest, digests = b"", []
            for piece in slices:
                digest = digest_of(digest + piece, seed)
                digests.append(digest)
            self._last = slices, digests
        return self._last[1]


def _bytes_of(entry: Entry) -> int:
    return ENTRY_BYTES + len(entry.tokens) + len(entry.keys)


Path = tuple[bytes, ...]

NODE_BYTES = 460
"""Bytes of memory per node besides its slice, tokens and keys; measured like ENTRY_BYTES."""

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
                self.stats.bytes += _node_bytes(known)
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
                stats.bytes -= _node_bytes(entry)
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


def _node_bytes(entry: Entry) -> int:
    return NODE_BYTES + len(entry.piece) + len(entry.tokens) + len(entry.keys)


def _leaf_bytes(path: Path) -> int:
    return LEAF_BYTES + 8 * len(path)
