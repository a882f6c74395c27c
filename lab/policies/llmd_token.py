"""The policy of the least booked work among candidates that hold most of the prompt."""

from dataclasses import dataclass
from random import Random

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs
from warmpath.scorer.policy import check_option


@dataclass(frozen=True, slots=True)
class LlmdToken:
    """llm-d's default of 2026-08: a filter, then booked tokens.

    It is the best published one in the policy study (`lab.simulate.study`), from which the gate comes. A
    candidate is warm if it holds at least `affinity` of the prompt. If there are warm candidates, a
    colder one takes part only if it has less booked than the least booked warm one, by `gate` seconds.
    The cost is in tokens: booked and not computed, this prompt included. Excluded ones come last.
    """

    affinity: float = 0.8
    """Share of the prompt from which on a candidate is warm."""
    gate: float = 14.0
    """Seconds of booked work that a colder candidate must have less than any warm one."""
    per_token: float = 70e-6
    """Seconds per booked token, which convert the gate into tokens."""

    def __post_init__(self) -> None:
        check_option("affinity", self.affinity, highest=1.0)
        check_option("gate", self.gate)
        check_option("per-token", self.per_token, lowest=1e-9)

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        booked = columns.load.waiting_uncached_tokens
        uncached = request.prompt_tokens - columns.cached
        is_warm = columns.cached >= self.affinity * request.prompt_tokens
        takes_part = np.ones_like(is_warm)
        if is_warm.any():
            takes_part = is_warm | (booked <= booked[is_warm].min() - self.gate / self.per_token)
        apart = 1.0 + 2.0 * (booked + uncached).max()
        outside = np.where(takes_part, 0.0, apart)
        return Costs.sum_of(("booked", booked), ("uncached", uncached), ("outside", outside))
