"""The warmest, however loaded it is."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.places import places


@dataclass(frozen=True, slots=True)
class LongestPrefix:
    """The fewest tokens to compute; among equals the fewest prompt tokens that wait for a prefill.

    The cost is the place in that order. Mooncake Conductor's "longest matched"
    (`shared/bench/peer-features.md`, 3) with the ties of `shared/bench/policy-study.md`, where it is the
    worst of all: what is warm gets all that is like it, and drowns.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return places, the warmest first."""
        del rng
        uncached = request.prompt_tokens - columns.cached
        waiting = columns.load.waiting_prompt_tokens
        return Costs(places(uncached, waiting), (("uncached", uncached), ("waiting", waiting)))
