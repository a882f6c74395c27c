"""The strategy `tiered`: the longest prefix, each block weighted by its tier."""

from collections.abc import Mapping
from types import MappingProxyType

from warmpath.scorer.match import Match

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"gpu": 1.0, "cpu": 0.8, "disk": 0.4, "remote": 0.3}
)
"""The share of a block's prefill that is saved if it is loaded from a tier.

1.0 and 0.8 are llm-d's values for GPU and CPU (`../shared/bench/peer-features.md`, row 37); the slower
two lie between 0 and Dynamo's values.
"""


def tiered(match: Match, weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the number of leading tokens, each times its tier's weight.

    Believed tokens count as on the GPU, where they are computed.
    """
    known = sum(tokens * weights[tier] for tier, tokens in match.tokens_by_tier.items())
    return known + match.believed_tokens * weights["gpu"]
