"""What one rank holds of a prompt: the input of every strategy."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

TIERS = ("gpu", "cpu", "disk", "remote")
"""Names of the tiers, fastest first."""


class Span(NamedTuple):
    """Blocks `start` to `stop` (exclusive) of the prompt, held in `tier` as the fastest."""

    start: int
    stop: int
    tier: str


@dataclass(frozen=True, slots=True)
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

    def tokens_by_tier(self) -> dict[str, int]:
        """Return the leading tokens that each tier holds; a block counts in its fastest tier."""
        tokens: dict[str, int] = {}
        for span in self.leading():
            tokens[span.tier] = tokens.get(span.tier, 0) + _tokens(span, self.block_size)
        return tokens


def _tokens(span: Span, block_size: int) -> int:
    return (span.stop - span.start) * block_size


def match_of(runs: Iterable[tuple[int, int, Iterable[str]]], block_size: int) -> Match:
    """Build a rank's match from runs of (start, stop, tiers that hold them), in order.

    A run held in several tiers counts in the fastest; runs held in none are gaps.
    """
    spans: list[Span] = []
    for start, stop, tiers in runs:
        tier = min(tiers, key=TIERS.index, default=None)
        if tier is None:
            continue
        if spans and spans[-1].stop == start and spans[-1].tier == tier:
            spans[-1] = Span(spans[-1].start, stop, tier)
        else:
            spans.append(Span(start, stop, tier))
    return Match(tuple(spans), block_size)
