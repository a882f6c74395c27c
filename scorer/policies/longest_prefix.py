"""The warmest, however loaded it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.order import in_order
from scorer.places import places


@dataclass(frozen=True, slots=True)
class LongestPrefix:
    """The fewest tokens to compute; among equals the fewest prompt tokens that wait for a prefill.

    The cost is the place in that order. Mooncake Conductor's "longest matched"
    (`shared/bench/peer-features.md`, 3) with the ties of `shared/bench/policy-study.md`, where it is the
    worst of all: what is warm gets all that is like it, and drowns.
    """

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the warmest first."""
        keys = [
            (float(request.prompt_tokens - one.cached), float(one.load.waiting_prompt_tokens))
            for one in candidates
        ]
        return in_order(
            [
                Ranked(one, place, (("uncached", key[0]), ("waiting", key[1])))
                for one, key, place in zip(candidates, keys, places(keys), strict=True)
            ],
            rng,
        )
