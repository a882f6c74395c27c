"""The policy of the longest prefix among candidates whose load is near the least."""

from dataclasses import dataclass
from random import Random

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option, places


@dataclass(frozen=True, slots=True)
class LoadBand:
    """The longest prefix within a band of load.

    Load is the number of prompt tokens that wait for a prefill; the band ends at factor x the least load
    + slack. Candidates outside come after, the least loaded first. The cost is the place in that order.
    """

    factor: float = 1.5
    slack: float = 20_000.0
    """Tokens above factor x the least load at which the band ends."""

    def __post_init__(self) -> None:
        check_option("factor", self.factor, lowest=1.0)
        check_option("slack", self.slack)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        waiting = columns.load.waiting_prompt_tokens
        uncached = request.prompt_tokens - columns.cached
        outside = (waiting > self.factor * waiting.min() + self.slack).astype(np.float64)
        first = np.where(outside, waiting, uncached)
        second = np.where(outside, uncached, waiting)
        terms = (("outside", outside), ("uncached", uncached), ("waiting", waiting))
        return Costs(places(outside, first, second), terms)
