"""The LRU store: a hash table from the digest of a text's beginning to the entry at its end.

The digest is chained over the slices (XXH3, 128 bits, over the previous digest and the slice), so the
text itself is not kept. It begins with a secret of the process, so that nobody can prepare two texts
with one digest; the chance of an accidental collision is 2^-64 at four billion entries.
`prefixstore.store.trie` compares the text itself.

Beyond `max_bytes` the least recently used entries are evicted, a text's last slices first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import xxhash

from warmpath.prefixstore.store.contract import Entry, PrefixStore

ENTRY_BYTES = 480
"""Bytes of memory per entry in addition to its tokens and keys.

Measured on CPython 3.11 as the growth of the process's memory over a million entries, and rounded up,
so that the bound is kept.
"""


class LruStore(PrefixStore):
    """A hash table of at most `max_bytes`. `secret` should be random bytes."""

    def __init__(self, max_bytes: int, secret: bytes) -> None:
        super().__init__(max_bytes)
        self._secret = secret
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
                self.stats.bytes += _bytes(entry)
            used.append(digest)
        self._touch(used)
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
            digest_of = xxhash.xxh3_128_digest
            digest = digest_of(self._secret)
            digests = []
            for piece in slices:
                digest = digest_of(digest + piece)
                digests.append(digest)
            self._last = slices, digests
        return self._last[1]


def _bytes(entry: Entry) -> int:
    return ENTRY_BYTES + len(entry.tokens) + len(entry.keys)
