"""The policy of the longest prefix, at any load."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import places


@dataclass(frozen=True, slots=True)
class LongestPrefix:
    """Minimises the tokens to compute; among equals the prompt tokens that wait for a prefill.

    The cost is the place in that order. This is Mooncake Conductor's "longest matched" with the tie rule
    of the policy study (`lab.simulate.study`), where it is the worst policy of all: a warm pod gets all
    similar requests and is overloaded.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return each candidate's place in the order, the warmest first."""
        del rng
        uncached = request.prompt_tokens - columns.cached
        waiting = columns.load.waiting_prompt_tokens
        return Costs(places(uncached, waiting), (("uncached", uncached), ("waiting", waiting)))
