"""The contract of a prefix store, which remembers the tokens of beginnings of texts.

A text comes as slices (`prefixstore.cuts.proof`). For each slice, together with everything before it, a
store remembers the tokens up to the last cut before its end, and the block keys that those tokens
complete. A label names the chain of keys (keyspace and block size) that they belong to.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from dataclasses import dataclass


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
