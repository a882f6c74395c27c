"""Tokens to compute times requests at work."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs


@dataclass(frozen=True, slots=True)
class Lmetric:
    """LMetric, as `shared/bench/policy-study.md` has it: a product, and so nothing to tune.

    Tokens booked and not computed, this prompt's included, times the requests in flight, this one
    included. The cost is in tokens x requests. It keeps short prompts off the pods of long ones.
    Dynamo has a variant, with blocks to decode for requests (`shared/bench/peer-features.md`, 3).
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the tokens to compute times the requests at work."""
        del rng
        prefill = columns.load.waiting_uncached_tokens + (request.prompt_tokens - columns.cached)
        batch = 1.0 + columns.load.in_flight
        return Costs(prefill * batch, (("prefill", prefill), ("batch", batch)))
