"""The strategies by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from scorer.match import Match
from scorer.strategies.coverage import coverage
from scorer.strategies.highest_block import highest_block
from scorer.strategies.longest_prefix import longest_prefix
from scorer.strategies.tiered import tiered

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
