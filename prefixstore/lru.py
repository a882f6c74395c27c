"""The LRU store: a hash table from a beginning's digest to its last piece's tokens.

The digest of a beginning is chained over its pieces (XXH3, 128 bits, over the digest before and the
piece), so the text itself is not kept: about 4 bytes for 4 characters of prompt, and `ENTRY_BYTES` a
piece. With 128 bits a collision within the life of a service is out of the question (2^-64 at four
billion entries). Past `max_bytes` the entries used least recently go, a text's last pieces first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import xxhash

from prefixstore.store import BrokenInvariantError, StoreStats

ENTRY_BYTES = 232
"""What one entry costs beside its tokens: digest, bytes header, and its place in the table.

Measured on CPython 3.11 as the growth of the process's memory over a million entries of 64 bytes
of tokens each, these taken off: 221, and somewhat more is reckoned, so that the bound is kept.
"""


class LruStore:
    """Holds at most `max_bytes`, keys and tables counted."""

    def __init__(self, max_bytes: int) -> None:
        self.stats = StoreStats()
        self._max_bytes = max_bytes
        self._tokens: OrderedDict[bytes, bytes] = OrderedDict()

    def find(self, space: str, pieces: Sequence[str]) -> list[bytes]:
        """Return the tokens of the leading pieces that are known."""
        found: list[bytes] = []
        used: list[bytes] = []
        for digest in _digests(space, pieces):
            tokens = self._tokens.get(digest)
            if tokens is None:
                break
            found.append(tokens)
            used.append(digest)
        self._touch(used)
        self.stats.hit_pieces += len(found)
        self.stats.missed_pieces += len(pieces) - len(found)
        return found

    def put(self, space: str, pieces: Sequence[str], tokens: Sequence[bytes]) -> None:
        """Remember the tokens of all pieces of a text."""
        stats = self.stats
        used = []
        for digest, ids in zip(_digests(space, pieces), tokens, strict=True):
            if digest not in self._tokens:
                self._tokens[digest] = ids
                stats.bytes += len(ids) + ENTRY_BYTES
            used.append(digest)
        self._touch(used)
        while stats.bytes > self._max_bytes:
            _, ids = self._tokens.popitem(last=False)
            stats.bytes -= len(ids) + ENTRY_BYTES
            stats.evictions += 1
        stats.entries = len(self._tokens)

    def _touch(self, digests: Sequence[bytes]) -> None:
        # The beginning last, so that it outlives what hangs on it.
        for digest in reversed(digests):
            self._tokens.move_to_end(digest)

    def check(self) -> None:
        """Raise BrokenInvariantError where the bytes do not add up or the bound is broken."""
        total = sum(len(ids) + ENTRY_BYTES for ids in self._tokens.values())
        if total != self.stats.bytes or len(self._tokens) != self.stats.entries:
            raise BrokenInvariantError("the store's bytes do not add up")
        if total > self._max_bytes:
            raise BrokenInvariantError("the store is past its bound")


def _digests(space: str, pieces: Sequence[str]) -> Iterator[bytes]:
    digest = xxhash.xxh3_128_digest(space.encode())
    for piece in pieces:
        digest = xxhash.xxh3_128_digest(digest + piece.encode())
        yield digest
