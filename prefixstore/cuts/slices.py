"""Slices of a text, by which a store looks it up, and the last proven cut in each.

A text's UTF-8 is sliced each `SLICE` bytes (`FAST_SLICE` for `fastokens`), so slices shared with an
earlier text are found without looking at their characters. A store keeps the tokens up to the last cut
(`prefixstore.cuts.proof`) before each slice's end. A cut depends only on the bytes before that end, so
two texts with the same beginning are cut at the same places there.
"""

import re
from collections.abc import Callable

from warmpath.prefixstore.cuts.expressions import LETTERS
from warmpath.prefixstore.cuts.proof import Cuts

SLICE = 512
"""Bytes of a slice. When a text grows, about half a slice of known text is encoded again."""
FAST_SLICE = 4096
"""Bytes of a slice where half of it is encoded again in 15 us: fewer entries, for a small loss."""

CUT_BYTES = 8
"""The most bytes of the letter before a cut and the characters after it that are read."""

FindCut = Callable[[bytes, int, int], int]
"""Returns the last cut in raw[begin:end] after `begin`, or `begin` if there is none."""


def slices_of(raw: bytes, size: int = SLICE) -> list[bytes]:
    """Return a text's slices: full ones of `size` bytes and a shorter last one, possibly empty.

    As the last slice is never full, it cannot be mistaken for the beginning of a longer text.
    """
    return [raw[start : start + size] for start in range(0, len(raw) + 1, size)]


def cut_finder(cuts: Cuts) -> FindCut:
    """Return the function that finds a tokenizer's cuts in UTF-8."""
    behind = " (?=[A-Za-z])" if cuts.drops_space else f"[{re.escape(cuts.before)}]"
    pattern = re.compile(f"(?s:.*)[{LETTERS}](?={behind})")

    def find(raw: bytes, begin: int, end: int) -> int:
        # Bytes of a character that lies across an end become surrogates, which are no letters.
        found = pattern.match(raw[begin:end].decode(errors="surrogateescape"))
        return begin + len(found[0].encode(errors="surrogateescape")) if found else begin

    return find
