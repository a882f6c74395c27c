"""Marks: some of the keys of prompts that are on their way to ranks, which other routers picked.

Without them a router would send the next prompt with the same beginning to a rank of its own choice,
where it is computed once more, until events announce the first one's blocks.

A prompt has marks at the blocks of a fixed series of places, 12 an octave, from a quarter of the prompt
to its end. So however long a prompt is, its marks take some 200 bytes, a reader looks up one key for
each place, and a common beginning is known to within a twelfth of an octave (6 %).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import WORD_BYTES, pack_words, words_of
from warmpath.router.load.other_routers import Count

PER_OCTAVE = 12
OCTAVES = 20
"""Octaves of the series: prompts of up to a million blocks."""
LEAST_PART = 4
"""A prompt's marks begin at its number of blocks divided by this."""
PLACES = sorted({round(2 ** (step / PER_OCTAVE)) for step in range(OCTAVES * PER_OCTAVE + 1)})
"""Numbers of leading blocks; the mark of a place is the key of the last of these."""
MOST_BLOCKS = PLACES[-1]


class MarkedPrompt(msgspec.Struct, frozen=True, array_like=True):
    """The marks of a prompt that is on its way to a rank."""

    pod: str
    rank: Count
    blocks: Annotated[int, Meta(ge=1, le=MOST_BLOCKS)]
    """The prompt's number of blocks."""
    marks: bytes
    """The packed keys (`indexer.keys.key`) at `places_of(blocks)`."""

    @property
    def is_possible(self) -> bool:
        """Whether it has as many marks as a prompt of its length."""
        return len(self.marks) == WORD_BYTES * len(places_of(self.blocks))


@lru_cache(1024)
def places_of(blocks: int) -> tuple[int, ...]:
    """Return the places at which a prompt of so many blocks has marks."""
    return tuple(place for place in PLACES if blocks <= place * LEAST_PART and place <= blocks)


def marked(pod: str, rank: int, keys: bytes) -> MarkedPrompt:
    """Return the marks of a prompt by its packed keys, at least one."""
    words = words_of(keys)[:MOST_BLOCKS]
    marks = pack_words(words[place - 1] for place in places_of(len(words)))
    return MarkedPrompt(pod, rank, len(words), marks)


class Marks:
    """The marks of other routers' prompts; as a bool, whether there are any."""

    def __init__(self) -> None:
        self.ranks: dict[int, dict[int, list[RankName]]] = {}
        """The ranks by place and key, the longest place first; callers only read them."""

    def __bool__(self) -> bool:
        return bool(self.ranks)

    def replace(self, prompts: Iterable[MarkedPrompt]) -> None:
        """Keep the marks of these prompts instead of all others."""
        found: dict[int, dict[int, list[RankName]]] = {}
        for one in prompts:
            name = RankName(one.pod, one.rank)
            for place, key in zip(places_of(one.blocks), words_of(one.marks), strict=True):
                found.setdefault(place, {}).setdefault(key, []).append(name)
        self.ranks = dict(sorted(found.items(), reverse=True))

    def match(self, keys: bytes) -> Mapping[RankName, int]:
        """Return how many leading blocks of a prompt are on their way to each rank, by packed keys.

        Fewer may be said than there are: those up to the last place within them.
        """
        found: dict[RankName, int] = {}
        words = words_of(keys)
        for place, ranks in self.ranks.items():
            if place <= len(words):
                for name in ranks.get(words[place - 1], ()):
                    # A longer place came first.
                    found.setdefault(name, place)
        return found
