"""Exploit a cache that holds most of the prompt; else explore, by work."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order
from scorer.policies.longest_prefix import LongestPrefix


@dataclass(frozen=True, slots=True)
class Preble:
    """Preble's E2 (Srivatsa et al., 2024), as `shared/bench/policy-study.md` has it.

    Where the warmest candidate has more than a share of the prompt, and prompt tokens that wait
    for a prefill are not too uneven (the most below factor x the least + slack), the
    longest prefix wins as in `LongestPrefix`: the cost is the place in that order.
    Otherwise it is in seconds: the tokens booked and not computed, this prompt's included, and a
    little for each request in flight.
    """

    share: float = 0.5
    factor: float = 2.0
    slack: float = 60_000.0
    """Tokens."""
    per_token: float = 70e-6
    """Seconds for a token to compute."""
    per_request: float = 0.002
    """Seconds for a request in flight."""

    def __post_init__(self) -> None:
        check_option("share", self.share, highest=1.0)
        check_option("factor", self.factor, lowest=1.0)
        check_option("slack", self.slack)
        check_option("per-token", self.per_token)
        check_option("per-request", self.per_request)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        waiting = [one.load.waiting_prompt_tokens for one in candidates]
        even = max(waiting) < self.factor * min(waiting) + self.slack
        if even and max(one.cached for one in candidates) > self.share * request.prompt_tokens:
            return LongestPrefix().rank(request, candidates, rng)
        return in_order([self._explore(request, one) for one in candidates], rng)

    def _explore(self, request: Request, one: Candidate) -> Ranked:
        uncached = request.prompt_tokens - one.cached
        prefill = self.per_token * (one.load.waiting_uncached_tokens + uncached)
        requests = self.per_request * one.load.in_flight
        return Ranked(one, prefill + requests, (("prefill", prefill), ("requests", requests)))
