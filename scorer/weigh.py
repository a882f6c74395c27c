"""Computes the prefill time of a prompt on a rank from the blocks that the rank holds."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from warmpath.scorer.match import Match
from warmpath.scorer.prefill import PrefillModel
from warmpath.scorer.strategies import WEIGHTS

TRUST: Mapping[str, float] = MappingProxyType(
    {"exact": 1.0, "degraded": 0.8, "cold": 0.8, "stale": 0.5}
)
"""The share of a rank's known blocks that counts, by its trust.

These are estimates, not measurements: after a gap most of a large cache is still there; after the
stream broke, less and less, and after `pick.assumed-seconds` nothing counts.
"""

ASSUMED = 0.8
"""The share of assumed blocks that counts, since some are evicted by now."""


class Warmth(NamedTuple):
    """The tokens of a prompt that count as cached on a rank, and the time of the rest."""

    cached: int
    """Tokens that count as cached; less than the whole prompt, as the last one is always computed."""
    prefill: float
    """Seconds for computing the rest and loading from slower tiers."""
    arriving: float = 0.0
    """Seconds of prefill that arriving blocks save."""


def warmth(match: Match, trust: str, prompt_tokens: int, model: PrefillModel) -> Warmth:
    """Return a rank's warmth, given its trust and its prefill model."""
    most = max(0, prompt_tokens - 1)
    known = min(match.known_tokens, most) * TRUST[trust]
    believed = max(match.arriving_tokens, match.assumed_tokens * ASSUMED)
    loading = 0.0
    if known >= believed:
        for tier, tokens in match.tokens_by_tier.items():
            loading += tokens * (1.0 - WEIGHTS[tier]) * model.per_token
    cached = int(min(max(known, believed), most))
    prefill = model.seconds(prompt_tokens - cached, cached) + loading
    without = int(min(max(known, match.assumed_tokens * ASSUMED), most))
    if without >= cached:
        return Warmth(cached, prefill)
    arriving = max(0.0, model.seconds(prompt_tokens - without, without) - prefill)
    return Warmth(cached, prefill, arriving)
