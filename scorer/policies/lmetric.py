"""Tokens to compute times requests at work."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.order import in_order


@dataclass(frozen=True, slots=True)
class Lmetric:
    """LMetric, as `shared/bench/policy-study.md` has it: a product, and so nothing to tune.

    Tokens booked and not computed, this prompt's included, times the requests in flight, this one
    included. The cost is in tokens x requests. It keeps short prompts off the pods of long ones.
    Dynamo has a variant, with blocks to decode for requests (`shared/bench/peer-features.md`, 3).
    """

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        ranked = []
        for one in candidates:
            uncached = request.prompt_tokens - one.cached
            prefill = float(one.load.waiting_uncached_tokens + uncached)
            batch = 1.0 + one.load.in_flight
            ranked.append(Ranked(one, prefill * batch, (("prefill", prefill), ("batch", batch))))
        return in_order(ranked, rng)
