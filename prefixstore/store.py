"""Remembers the tokens of beginnings of texts: a hash table from a beginning's digest to its last entry.

A text comes as slices (`prefixstore.cuts.proof`). For each slice, together with everything before it,
the store remembers the tokens up to the last cut before its end, and the block keys that those tokens
complete. The digest is chained over the slices (XXH3, 128 bits, over the previous digest and the slice),
so the text itself is not kept. A seed that only the process knows keeps others from preparing two texts
with one digest; the chance of an accidental collision is 2^-64 at four billion entries.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import xxhash

ENTRY_BYTES = 480
"""Bytes of memory per entry in addition to its tokens and keys.

Measured on CPython 3.11 as the growth of the process's memory over a million entries, and rounded up,
so that the bound is kept.
"""


class Entry:
    """The tokens of one slice of a text, and the keys of blocks that end there.

    After `put` only the store may change it.
    """

    __slots__ = ("is_kept", "keys", "label", "tail", "tokens")

    def __init__(self, tokens: bytes, tail: int) -> None:
        self.tokens = tokens
        """Packed token ids from the previous slice's cut to this slice's."""
        self.tail = tail
        """Bytes between this slice's cut and its end, which no token covers yet."""
        self.label: object = None
        """The chain of keys (keyspace and block size) that `keys` belong to."""
        self.keys = b""
        """Keys of the blocks that end within these tokens, 8 bytes each."""
        self.is_kept = False
        """Whether the store has the entry and counts its bytes."""


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


class PrefixStore:
    """A store of at most `max_bytes`, keys and tables included. `seed` is a random number of 64 bits.

    Beyond `max_bytes` the least recently used entries are evicted, a text's last slices first. Each
    tokenizer has a store of its own. Calls are made from one thread at a time.
    """

    def __init__(self, max_bytes: int, seed: int) -> None:
        self.stats = StoreStats()
        """The store's size and counters."""
        self._max_bytes = max_bytes
        self._seed = seed
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._last: tuple[Sequence[bytes], list[bytes]] = ((), [])
        """The last slices and their digests: a `find` that misses is followed by a `put` of them."""

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the leading slices that are known; empty if the first is not."""
        digests = self._digests(slices)
        looked: list[Entry | None] = list(map(self._entries.get, digests))
        count = looked.index(None) if None in looked else len(looked)
        self._touch(digests[:count])
        known = sum(map(len, slices[:count]))
        self.stats.hit_bytes += known
        self.stats.missed_bytes += sum(map(len, slices)) - known
        return cast("list[Entry]", looked[:count])

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        """Remember the entries of a text's leading slices; one that the store has is not replaced."""
        used = []
        for entry, digest in zip(entries, self._digests(slices), strict=False):
            if digest not in self._entries:
                self._entries[digest] = entry
                entry.is_kept = True
                self.stats.bytes += _bytes(entry)
            used.append(digest)
        self._touch(used)
        self._make_room()

    def keep_keys(self, entries: Sequence[Entry], label: object, keys: Sequence[bytes]) -> None:
        """Remember `keys`, one item for each entry, under `label`; they replace another label's."""
        for entry, own in zip(entries, keys, strict=True):
            if entry.is_kept:
                self.stats.bytes += len(own) - len(entry.keys)
            entry.label, entry.keys = label, own
        self._make_room()

    def _make_room(self) -> None:
        stats = self.stats
        while stats.bytes > self._max_bytes:
            _, entry = self._entries.popitem(last=False)
            entry.is_kept = False
            stats.bytes -= _bytes(entry)
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
            digest = b""
            digests = []
            for piece in slices:
                digest = digest_of(digest + piece, seed)
                digests.append(digest)
            self._last = slices, digests
        return self._last[1]


def _bytes(entry: Entry) -> int:
    return ENTRY_BYTES + len(entry.tokens) + len(entry.keys)
