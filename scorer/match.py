"""What one rank holds of a prompt: the input of every strategy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

TIERS = ("gpu", "cpu", "disk", "remote")
"""Names of the tiers, fastest first."""


class Span(NamedTuple):
    """Blocks `start` to `stop` (exclusive) of the prompt, held in `tier` as the fastest."""

    start: int
    stop: int
    tier: str


@dataclass(frozen=True)
class Match:
    """The blocks of a prompt that one rank holds.

    `spans` are in order, do not overlap and are not empty; between two of them may be a gap.
    `block_size` is in tokens.
    """

    spans: tuple[Span, ...]
    block_size: int

    def leading(self) -> tuple[Span, ...]:
        """Return the spans from the first block on that have no gap between them."""
        found = []
        depth = 0
        for span in self.spans:
            if span.start != depth:
                break
            found.append(span)
            depth = span.stop
        return tuple(found)

    @cached_property
    def tokens_by_tier(self) -> Mapping[str, int]:
        """The leading tokens that each tier holds; a block counts in its fastest tier."""
        tokens: dict[str, int] = {}
        for start, stop, tier in self.leading():
            tokens[tier] = tokens.get(tier, 0) + (stop - start) * self.block_size
        return tokens


def spans_of(stretches: Sequence[tuple[int, int, str]]) -> tuple[Span, ...]:
    """Return the spans of stretches (start, stop, tier), which may overlap, in any order.

    A block held in several tiers counts in the fastest.
    """
    if len(stretches) == 1:
        return (Span(*stretches[0]),)
    edges = []
    for start, stop, tier in stretches:
        edges.append((start, TIERS.index(tier), 1))
        edges.append((stop, TIERS.index(tier), -1))
    spans: list[Span] = []
    holding = [0] * len(TIERS)
    before = 0
    for at, number, change in sorted(edges):
        fastest = next((tier for tier, count in zip(TIERS, holding, strict=True) if count), None)
        if fastest is not None and at > before:
            if spans and spans[-1].stop == before and spans[-1].tier == fastest:
                before = spans.pop().start
            spans.append(Span(before, at, fastest))
        holding[number] += change
        before = at
    return tuple(spans)


def match_of(stretches: Sequence[tuple[int, int, str]], block_size: int) -> Match:
    """Build a rank's match from stretches (start, stop, tier)."""
    return Match(spans_of(stretches), block_size)
