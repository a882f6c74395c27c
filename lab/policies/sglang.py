"""The policy of SGLang's router: the longest prefix while loads are even, else the least requests."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option, places


@dataclass(frozen=True, slots=True)
class Sglang:
    """The cache-aware rule of SGLang's router, now smg.

    If the loads are uneven (requests in flight differ by more than `abs`, and the most are more than
    `rel` x the least), the cost is the requests in flight. Otherwise the cost is a place in an order:
    the longest prefix first if some candidate holds more than `threshold` of the prompt, or else the
    fewest cached tokens first, so that caches fill evenly. In both, fewer requests in flight break ties,
    and then the smaller tree: the fewest tokens of all prompts.

    Sources: `score_overlap` in lightseekorg/smg, `model_gateway/src/policies/cache_aware.rs`, commit
    1053321 (prefix, load, tree); SGLang's first routers for the smallest tree below the threshold, where
    smg and SGLang's gateway (053b63f) take the least load.
    """

    abs: float = 32.0
    """Loads that differ by no more requests in flight are even."""
    rel: float = 1.1
    threshold: float = 0.5
    """Share of the prompt above which a held prefix counts."""

    def __post_init__(self) -> None:
        check_option("abs", self.abs)
        check_option("rel", self.rel, lowest=1.0)
        check_option("threshold", self.threshold, highest=1.0)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        flights = columns.load.in_flight
        least, most = flights.min(), flights.max()
        if most - least > self.abs and most > self.rel * least:
            return Costs.sum_of(("requests", flights))
        if columns.cached.max() <= self.threshold * request.prompt_tokens:
            known = columns.known_tokens()
            return Costs(places(known, flights), (("known", known), ("requests", flights)))
        uncached = request.prompt_tokens - columns.cached
        terms = (("uncached", uncached), ("requests", flights))
        cost = places(uncached, flights)
        if (cost == cost.min()).sum() == 1:
            return Costs(cost, terms)
        known = columns.known_tokens()
        return Costs(places(uncached, flights, known), (*terms, ("known", known)))
