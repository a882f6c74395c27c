"""The policy of the least product of tokens to compute and requests in flight."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs


@dataclass(frozen=True, slots=True)
class Lmetric:
    """LMetric: a product without parameters.

    The cost is the tokens booked and not computed, this prompt included, times the requests in flight,
    this one included. It keeps short prompts off the pods of long ones. Dynamo has a variant with
    blocks to decode in place of requests.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        prefill = columns.load.waiting_uncached_tokens + (request.prompt_tokens - columns.cached)
        batch = 1.0 + columns.load.in_flight
        return Costs(prefill * batch, (("prefill", prefill), ("batch", batch)))
