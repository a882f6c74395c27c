"""The cache while loads are even, the shortest queue when they are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order
from scorer.places import places


@dataclass(frozen=True, slots=True)
class Sglang:
    """The cache-aware rule of SGLang's router, now smg (`shared/bench/peer-features.md`, 3).

    Out of balance (requests in flight differ by more than `abs`, and the most are more than `rel` x the
    least): the cost is requests in flight. Else, where some candidate holds more than a share of
    the prompt: the warmest. Else the one that is known to hold the fewest tokens, so that caches
    fill evenly. Among equals of these two fewer requests in flight; the cost is the place.
    """

    needs_known_tokens: ClassVar[bool] = True

    abs: float = 32.0
    """Requests."""
    rel: float = 1.1
    threshold: float = 0.5
    """The share of the prompt."""

    def __post_init__(self) -> None:
        check_option("abs", self.abs)
        check_option("rel", self.rel, lowest=1.0)
        check_option("threshold", self.threshold, highest=1.0)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        flights = [one.load.in_flight for one in candidates]
        least, most = min(flights), max(flights)
        if most - least > self.abs and most > self.rel * least:
            return in_order(
                [
                    Ranked(one, float(flight), (("requests", float(flight)),))
                    for one, flight in zip(candidates, flights, strict=True)
                ],
                rng,
            )
        if max(one.cached for one in candidates) > self.threshold * request.prompt_tokens:
            name, firsts = "uncached", [request.prompt_tokens - one.cached for one in candidates]
        else:
            name, firsts = "known", [one.known_tokens for one in candidates]
        keys = list(zip(map(float, firsts), map(float, flights), strict=True))
        return in_order(
            [
                Ranked(one, place, ((name, key[0]), ("requests", key[1])))
                for one, key, place in zip(candidates, keys, places(keys), strict=True)
            ],
            rng,
        )
