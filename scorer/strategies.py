"""Strategies: from what a rank holds of a prompt to a score; higher is warmer, 0 is nothing held."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from warmpath.scorer.match import Match

Strategy = Callable[[Match], float]
"""Returns a match's score."""

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"gpu": 1.0, "cpu": 0.8, "disk": 0.4, "remote": 0.3}
)
"""The share of a block's prefill that is saved if it is loaded from a tier.

1.0 and 0.8 are llm-d's values for GPU and CPU; the slower two lie between 0 and Dynamo's values.
"""


def longest_prefix(match: Match) -> float:
    """Return the number of leading tokens held without a gap, which an engine would find cached."""
    return float(match.matched_tokens)


def highest_block(match: Match) -> float:
    """Return the number of tokens from the prompt's start to the end of the last held block."""
    return float(match.spans[-1].stop * match.block_size) if match.spans else 0.0


def coverage(match: Match) -> float:
    """Return the number of tokens in all held blocks, for engines that can fill gaps."""
    return float(sum(span.stop - span.start for span in match.spans) * match.block_size)


def tiered(match: Match, weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the number of leading tokens held without a gap, each times its tier's weight.

    Believed tokens count as on the GPU, where they are computed.
    """
    known = sum(tokens * weights[tier] for tier, tokens in match.tokens_by_tier.items())
    return known + match.believed_tokens * weights["gpu"]


DEFAULT = "longest-prefix"

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        DEFAULT: longest_prefix,
        "highest-block": highest_block,
        "coverage": coverage,
        "tiered": tiered,
    }
)

LEADING = frozenset({longest_prefix, tiered})
"""Strategies that need only the leading blocks, up to the first that no rank holds."""
