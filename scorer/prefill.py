"""How many seconds a prefill takes, as far as the router can know.

    seconds = base + per_token x u + per_context x u x (c + u/2)

for u uncached tokens behind c cached ones: a fixed part, what multiplies tokens with weights, and
attention, which is quadratic. The default constants are those of `shared/bench/policy-study.md`,
"Model and load": a 70B model at tensor parallel 4. Only their ratios matter much: constants that
are off by a factor of two either way move the choice little (the same study, "Robustness").
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Constants of the model, seconds."""

    base: float = 0.020
    """A prefill, whatever its length."""
    per_token: float = 70e-6
    """An uncached token."""
    per_context: float = 1.3e-9
    """An uncached token and a token before it."""

    def seconds(self, uncached: float, cached: float) -> float:
        """Return the seconds that `uncached` tokens behind `cached` ones take."""
        context = self.per_context * (cached + uncached / 2)
        return self.base + uncached * (self.per_token + context)
