"""Counts of prompt tokens; the contract's `Attribution` and docs/reference/picks.md say of which."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class TokenCounts:
    """Sums over picks, of some pod and model, or of some client."""

    requests: int = 0
    prompt_tokens: int = 0
    available_tokens: int = 0
    captured_tokens: int = 0
    average_tokens: int = 0
    reported_requests: int = 0
    """Requests whose report has the engine's cached tokens; the next three counters are of these."""
    reported_prompt_tokens: int = 0
    predicted_tokens: int = 0
    delivered_tokens: int = 0
