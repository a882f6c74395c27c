"""The contract of a prefix store: what is known of a text's beginning.

A text comes as slices (`prefixstore.cuts.slices`). For each slice, together with everything before it, a
store remembers the tokens up to the last cut before its end; and the block keys that those tokens
complete, under a label that says whose keys they are.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Protocol


class BrokenInvariantError(Exception):
    """A store contradicts itself: a bug of ours."""


class Entry:
    """What is known where a slice ends. The store owns it once it was put."""

    __slots__ = ("children", "is_kept", "keys", "label", "piece", "tail", "tokens")

    def __init__(self, tokens: bytes, tail: int) -> None:
        self.tokens = tokens
        """Packed ids from the cut before to this slice's."""
        self.tail = tail
        """Bytes of text at the slice's end that no tokens stand for yet."""
        self.piece = b""
        """The slice, for a store that keeps texts."""
        self.children = 0
        """Entries right behind it, for a store that counts them."""
        self.label: object = None
        self.keys = b""
        """Block keys that are complete with these tokens and not before, 8 bytes each."""
        self.is_kept = False
        """Whether a store has it, and counts its bytes."""


@dataclass(slots=True)
class StoreStats:
    """What a store holds and what happened to it."""

    bytes: int = 0
    entries: int = 0
    hit_bytes: int = 0
    """Bytes of text that were looked up and known."""
    missed_bytes: int = 0
    evictions: int = 0

    def looked_up(self, slices: Sequence[Sized], found: int) -> None:
        """Count a text of which the first `found` slices were known."""
        known = sum(map(len, slices[:found]))
        self.hit_bytes += known
        self.missed_bytes += sum(map(len, slices)) - known


def relabel(entries: Sequence[Entry], label: object, keys: Sequence[bytes]) -> int:
    """Give entries other block keys; return by how many bytes what a store keeps grows."""
    grown = 0
    for entry, own in zip(entries, keys, strict=True):
        if entry.is_kept:
            grown += len(own) - len(entry.keys)
        entry.label, entry.keys = label, own
    return grown


class PrefixStore(Protocol):
    """What every store promises; `tests/conformance/test_prefix_store.py` runs on all of them.

    Each tokenizer has a store of its own. Calls are made from one thread at a time.
    """

    @property
    def stats(self) -> StoreStats:
        """What the store holds."""

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the leading slices that are known."""

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        """Remember the entries of a text's leading slices. One that is known already stays."""

    def keep_keys(self, entries: Sequence[Entry], label: object, keys: Sequence[bytes]) -> None:
        """Remember each entry's block keys, instead of any other label's."""

    def check(self) -> None:
        """Raise BrokenInvariantError where the store contradicts itself."""
