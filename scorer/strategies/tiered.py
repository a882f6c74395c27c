"""The longest prefix, each block weighted by what its tier saves."""

from collections.abc import Mapping
from types import MappingProxyType

from scorer.match import Match

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"gpu": 1.0, "cpu": 0.8, "disk": 0.4, "remote": 0.3}
)
"""The share of a block's prefill that is saved when it comes from a tier.

1.0 and 0.8 are what llm-d ships for GPU and CPU (`shared/bench/peer-features.md`, row 37); the
slower two are between nothing and Dynamo's credits for them.
"""


def tiered(match: Match, weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the leading tokens, each times its tier's weight.

    What is only believed to be there counts as on the GPU: it is computed there.
    """
    known = sum(tokens * weights[tier] for tier, tokens in match.tokens_by_tier.items())
    return known + match.believed_tokens * weights["gpu"]
