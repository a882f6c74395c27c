"""The contract of a prefix store: what is known of a text's beginning.

A text comes as the pieces that its tokenizer cuts it into. A store remembers the tokens of pieces
together with everything that stands before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class BrokenInvariantError(Exception):
    """A store contradicts itself: a bug of ours."""


@dataclass(slots=True)
class StoreStats:
    """What a store holds and what happened to it."""

    bytes: int = 0
    entries: int = 0
    hit_pieces: int = 0
    missed_pieces: int = 0
    evictions: int = 0


class PrefixStore(Protocol):
    """What every store promises; `tests/conformance/test_prefix_store.py` runs on all of them.

    Calls are made from one thread at a time. `space` names the tokenizer: two never share.
    """

    @property
    def stats(self) -> StoreStats:
        """What the store holds."""

    def find(self, space: str, pieces: Sequence[str]) -> list[bytes]:
        """Return the tokens of the leading pieces that are known, one entry a piece."""

    def put(self, space: str, pieces: Sequence[str], tokens: Sequence[bytes]) -> None:
        """Remember the tokens of all pieces of a text."""

    def check(self) -> None:
        """Raise BrokenInvariantError where the store contradicts itself."""
