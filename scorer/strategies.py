"""The strategies by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from warmpath.scorer.coverage import coverage
from warmpath.scorer.highest_block import highest_block
from warmpath.scorer.longest_prefix import longest_prefix
from warmpath.scorer.match import Match
from warmpath.scorer.tiered import tiered

Strategy = Callable[[Match], float]
"""Returns a match's score; higher is warmer, 0 if no block is held."""

DEFAULT = "longest-prefix"

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "longest-prefix": longest_prefix,
        "highest-block": highest_block,
        "coverage": coverage,
        "tiered": tiered,
    }
)

LEADING = frozenset({longest_prefix, tiered})
"""Strategies that need only the leading blocks, up to the first that no rank holds."""
