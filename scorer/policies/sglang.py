"""The cache while loads are even, the shortest queue when they are not."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.option import check_option
from scorer.places import places


@dataclass(frozen=True, slots=True)
class Sglang:
    """The cache-aware rule of SGLang's router, now smg (`shared/bench/peer-features.md`, 3).

    Out of balance (requests in flight differ by more than `abs`, and the most are more than `rel` x the
    least): the cost is requests in flight. Else, where some candidate holds more than a share of
    the prompt: the warmest. Else the one that is known to hold the fewest tokens, so that caches
    fill evenly. Among equals of these two fewer requests in flight; the cost is the place.
    """

    abs: float = 32.0
    """Requests."""
    rel: float = 1.1
    threshold: float = 0.5
    """The share of the prompt."""

    def __post_init__(self) -> None:
        check_option("abs", self.abs)
        check_option("rel", self.rel, lowest=1.0)
        check_option("threshold", self.threshold, highest=1.0)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return requests in flight where they are out of balance, else places."""
        del rng
        flights = columns.load.in_flight
        least, most = flights.min(), flights.max()
        if most - least > self.abs and most > self.rel * least:
            return Costs.sum_of(("requests", flights))
        if columns.cached.max() > self.threshold * request.prompt_tokens:
            name, first = "uncached", request.prompt_tokens - columns.cached
        else:
            name, first = "known", columns.known_tokens()
        return Costs(places(first, flights), ((name, first), ("requests", flights)))
