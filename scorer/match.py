"""The blocks of a prompt that one rank holds: the input of every strategy.

For a hybrid model, with several caches (groups), `reusable` computes how many of them a request can use.
A full-attention cache needs every block from the first on. A sliding window needs only the last blocks
before the point of reuse, a state-space cache only its state there; all must agree on one point.

Source: vLLM's `KVCacheCoordinator.find_longest_cache_hit` and the `find_longest_cache_hit` of its
single-type managers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

TIERS = ("gpu", "cpu", "disk", "remote")
"""Names of the tiers, fastest first."""


class Span(NamedTuple):
    """Blocks `start` to `stop` (exclusive) of the prompt; `tier` is the fastest that holds them."""

    start: int
    stop: int
    tier: str


@dataclass(slots=True, eq=False)
class Match:
    """The blocks of a prompt that one rank holds.

    `spans` are the blocks known from events: in order, not overlapping, not empty, with gaps allowed.
    `held` are the stretches (start, stop, tier) of each tier, in any order; they may overlap, and go on
    behind the last block that the rank can reuse.
    `arriving_tokens` and `assumed_tokens` are leading tokens that are only believed to be there: from
    requests just picked, or sent there while events were missing. `block_size` is in tokens.
    """

    spans: tuple[Span, ...]
    block_size: int
    held: Sequence[tuple[int, int, str]] = ()
    arriving_tokens: int = 0
    assumed_tokens: int = 0
    leading: tuple[Span, ...] = field(init=False)
    """The leading spans without a gap."""
    tokens_by_tier: dict[str, int] = field(init=False)
    """The leading tokens that each tier holds; a block counts in its fastest tier."""
    known_tokens: int = field(init=False)
    """The leading tokens known from events, in any tier."""
    matched_tokens: int = field(init=False)
    """The leading tokens held, known or believed."""

    def __post_init__(self) -> None:
        self.leading = _leading(self.spans)
        self.tokens_by_tier = {}
        for start, stop, tier in self.leading:
            tokens = self.tokens_by_tier.get(tier, 0)
            self.tokens_by_tier[tier] = tokens + (stop - start) * self.block_size
        self.known_tokens = sum(self.tokens_by_tier.values())
        self.matched_tokens = max(self.known_tokens, self.arriving_tokens, self.assumed_tokens)

    @property
    def believed_tokens(self) -> int:
        """The number of leading tokens that are only believed."""
        return self.matched_tokens - self.known_tokens


def _leading(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    depth = 0
    for number, span in enumerate(spans):
        if span.start != depth:
            return spans[:number]
        depth = span.stop
    return spans


NOTHING = Match((), 0)


def spans_of(
    stretches: Sequence[tuple[int, int, str]], tiers: Sequence[str] = TIERS
) -> tuple[Span, ...]:
    """Return the spans of stretches (start, stop, tier), which may overlap, in any order.

    A block held in several tiers counts in the first of `tiers`: the fastest.
    """
    if len(stretches) == 1:
        return (Span(*stretches[0]),)
    edges = []
    for start, stop, tier in stretches:
        edges.append((start, tiers.index(tier), 1))
        edges.append((stop, tiers.index(tier), -1))
    spans: list[Span] = []
    holding = [0] * len(tiers)
    before = 0
    for at, number, change in sorted(edges):
        fastest = next((tier for tier, count in zip(tiers, holding, strict=True) if count), None)
        if fastest is not None and at > before:
            if spans and spans[-1].stop == before and spans[-1].tier == fastest:
                before = spans.pop().start
            spans.append(Span(before, at, fastest))
        holding[number] += change
        before = at
    return tuple(spans)


def match_of(stretches: Sequence[tuple[int, int, str]], block_size: int) -> Match:
    """Return a rank's match from stretches (start, stop, tier)."""
    if len(stretches) == 1:
        return _match_of_one(*stretches[0], block_size)
    return Match(spans_of(stretches), block_size, held=stretches)


@lru_cache(4096)
def _match_of_one(start: int, stop: int, tier: str, block_size: int) -> Match:
    # Most matches are a prompt's first blocks in one tier, so there are few different ones.
    return Match((Span(start, stop, tier),), block_size, held=((start, stop, tier),))


@dataclass(frozen=True, slots=True)
class Window:
    """A cache that needs only the last blocks before the point of reuse.

    `runs` are the held ones of the prompt's blocks, as (first, past the last), in order and not
    adjacent; `step` is the number of the prompt's blocks per block of this cache; `needed` is how many
    blocks of this cache must be held.
    """

    runs: Sequence[tuple[int, int]]
    step: int
    needed: int

    def reach(self, most: int) -> int:
        """Return the furthest point of reuse up to `most` blocks that this cache allows."""
        best = 0
        begun = end = -1
        for number in self._own_blocks(most):
            if number != end:
                begun = number
            end = number + 1
            # A run from the prompt's beginning suffices at any length.
            if begun == 0 or end - begun >= self.needed:
                best = end * self.step
        return best

    def _own_blocks(self, most: int) -> Sequence[int]:
        """Return the numbers of this cache's held blocks that end by `most`, in order.

        A block that spans several of the prompt's blocks has the key of the last of them.
        """
        step = self.step
        return [
            position // step
            for start, stop in self.runs
            for position in range(start, min(stop, most))
            if position % step == step - 1
        ]


def reusable(prefix: int, windows: Sequence[Window], align: int) -> int:
    """Return how many leading blocks every cache can reuse.

    `prefix` blocks are held by all full-attention caches; reuse ends at a multiple of `align` blocks.
    """
    most = prefix // align * align
    while most:
        agreed = min((window.reach(most) for window in windows), default=most)
        agreed = agreed // align * align
        if agreed == most:
            break
        most = agreed
    return most
