"""From what a rank holds of a prompt to what its prefill would cost there."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from scorer.match import Match
from scorer.prefill import PrefillModel
from scorer.strategies.tiered import WEIGHTS

TRUST: Mapping[str, float] = MappingProxyType(
    {"exact": 1.0, "degraded": 0.8, "cold": 0.8, "stale": 0.5}
)
"""The share of what events told of a rank that is counted, by its trust.

Expectations, not measurements: after a gap most of a large cache is still there; after the stream
broke less so the longer it is gone, and past `pick.assumed-seconds` it does not count at all.
"""

ASSUMED = 0.8
"""The share of what was sent to a rank without events that is counted: some is evicted by now."""


class Warmth(NamedTuple):
    """What counts as cached, and what the rest costs."""

    cached: int
    """Tokens, less than the whole prompt: the last one is always computed."""
    prefill: float
    """Seconds: computing the rest, and loading from slower tiers."""
    arriving: float = 0.0
    """Seconds of prefill that would come on top but for prompts on their way there."""


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
