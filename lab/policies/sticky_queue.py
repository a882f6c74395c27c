"""The policy of the longest prefix until that candidate's queue is long, then of the least load."""

from dataclasses import dataclass
from random import Random

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option, places


@dataclass(frozen=True, slots=True)
class StickyQueue:
    """A threshold in place of a weight.

    The longest prefix wins, among equals the fewest prompt tokens that wait for a prefill; the cost is
    the place in that order. If more than `q` requests wait at the winner, the cost is those tokens.
    """

    q: float = 4.0
    """The most requests without their first token for which the longest prefix wins."""

    def __post_init__(self) -> None:
        check_option("q", self.q)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        uncached = request.prompt_tokens - columns.cached
        waiting = columns.load.waiting_prompt_tokens
        too_long = (columns.load.waiting > self.q).astype(np.float64)
        place = places(uncached, waiting, too_long)
        terms = (("uncached", uncached), ("waiting", waiting), ("too_long", too_long))
        return Costs(waiting if too_long[place.argmin()] else place, terms)
