"""The policy of Preble: the longest prefix if a cache holds most of the prompt, else the least work."""

from dataclasses import dataclass
from random import Random

from warmpath.lab.policies.longest_prefix import LongestPrefix
from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option


@dataclass(frozen=True, slots=True)
class Preble:
    """Preble's E2 (Srivatsa et al., 2024).

    If the warmest candidate holds more than `share` of the prompt, and the prompt tokens that wait for a
    prefill are even enough (the most below factor x the least + slack), the longest prefix wins as in
    `LongestPrefix`, and the cost is the place in that order.

    Otherwise the cost is in seconds: for the tokens booked and not computed, this prompt included, and
    for each request in flight.
    """

    share: float = 0.5
    factor: float = 2.0
    slack: float = 60_000.0
    """Tokens by which the most may exceed factor x the least."""
    per_token: float = 70e-6
    """Seconds per token to compute."""
    per_request: float = 0.002
    """Seconds per request in flight."""

    def __post_init__(self) -> None:
        check_option("share", self.share, highest=1.0)
        check_option("factor", self.factor, lowest=1.0)
        check_option("slack", self.slack)
        check_option("per-token", self.per_token)
        check_option("per-request", self.per_request)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        load, waiting = columns.load, columns.load.waiting_prompt_tokens
        is_even = waiting.max() < self.factor * waiting.min() + self.slack
        if is_even and columns.cached.max() > self.share * request.prompt_tokens:
            return LongestPrefix().costs(request, columns, rng)
        uncached = request.prompt_tokens - columns.cached
        return Costs.sum_of(
            ("prefill", self.per_token * (load.waiting_uncached_tokens + uncached)),
            ("requests", self.per_request * load.in_flight),
        )
