"""Estimates how many seconds a prefill takes.

    seconds = base + per_token x u + per_context x u x (c + u/2)

for u uncached tokens after c cached ones: a fixed part, a part linear in tokens (matrix products), and
attention, which is quadratic. The default constants fit a 70B model at tensor parallel 4. Mainly their
ratios matter: constants that are off by a factor of two change few choices.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """The cost model's constants, in seconds."""

    base: float = 0.020
    """Seconds per prefill, of any length."""
    per_token: float = 70e-6
    """Seconds per uncached token."""
    per_context: float = 1.3e-9
    """Seconds per pair of an uncached token and a token before it."""
    per_pulled_token: float = math.inf
    """Seconds per token whose KV is pulled from a peer that holds it; infinity: engines cannot pull."""

    def seconds(self, uncached: float, cached: float) -> float:
        """Return the seconds for `uncached` tokens after `cached` ones."""
        context = self.per_context * (cached + uncached / 2)
        return self.base + uncached * (self.per_token + context)

    def saved(self, cached: float) -> float:
        """Return the seconds by which `cached` tokens shorten a prefill, whatever comes after them."""
        return cached * (self.per_token + self.per_context * cached / 2)
