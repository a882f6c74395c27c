"""Slices of a text, by which a store looks it up, and the last proven cut in each.

A text's UTF-8 is sliced each `SLICE` bytes, so slices shared with an earlier text are found without
looking at their characters. A store keeps the tokens up to the last cut (`prefixstore.cuts.proof`)
before each slice's end. A cut depends only on the bytes before that end, so two texts with the same
beginning are cut at the same places there.
"""

import re
from collections.abc import Callable

from warmpath.prefixstore.cuts.expressions import LETTERS
from warmpath.prefixstore.cuts.proof import Cuts

SLICE = 512
"""Bytes of a slice. When a text grows, about half a slice of known text is encoded again."""

CUT_BYTES = 8
"""The most bytes of the letter before a cut and the characters after it that are read."""

FindCut = Callable[[bytes, int, int], int]
"""Returns the last cut in raw[begin:end] after `begin`, or `begin` if there is none."""


def slices_of(raw: bytes) -> list[bytes]:
    """Return a text's slices: full ones and a shorter last one, possibly empty.

    As the last slice is never full, it cannot be mistaken for the beginning of a longer text.
    """
    return [raw[start : start + SLICE] for start in range(0, len(raw) + 1, SLICE)]


def cut_finder(cuts: Cuts) -> FindCut:
    """Return the function that finds a tokenizer's cuts in UTF-8."""
    ends = [" (?=[A-Za-z])" if cuts.drops_space else _escaped(cuts.before)]
    pattern = re.compile(f"(?s:.*)(?:{_utf8_letters()})(?={'|'.join(ends)})".encode("latin-1"))

    def find(raw: bytes, begin: int, end: int) -> int:
        found = pattern.match(raw, begin, end)
        return found.end() if found else begin

    return find


def _escaped(characters: str) -> str:
    """Return a pattern for any one of `characters` in UTF-8, its bytes written as Latin-1."""
    return "|".join(re.escape(one.encode().decode("latin-1")) for one in characters)


def _utf8_letters() -> str:
    """Return a pattern for any one of `LETTERS` in UTF-8, its bytes written as Latin-1."""
    ranges = re.findall("(.)-(.)", LETTERS)
    parts = ["".join(f"{first}-{last}" for first, last in ranges if last < "\x80").join("[]")]
    for first, last in ranges:
        if last >= "\x80":
            parts += _range(first.encode(), last.encode())
    return "|".join(parts)


def _range(first: bytes, last: bytes) -> list[str]:
    if len(first) == 1:
        return [_byte(first[0], last[0])]
    if first[0] == last[0]:
        return [_byte(first[0], first[0]) + rest for rest in _range(first[1:], last[1:])]
    lowest, highest = b"\x80" * (len(first) - 1), b"\xbf" * (len(first) - 1)
    parts = [_byte(first[0], first[0]) + rest for rest in _range(first[1:], highest)]
    if first[0] + 1 < last[0]:
        rests = _range(lowest, highest)
        parts += [_byte(first[0] + 1, last[0] - 1) + rest for rest in rests]
    return parts + [_byte(last[0], last[0]) + rest for rest in _range(lowest, last[1:])]


def _byte(first: int, last: int) -> str:
    if first == last:
        return re.escape(chr(first))
    return f"[{re.escape(chr(first))}-{re.escape(chr(last))}]"
