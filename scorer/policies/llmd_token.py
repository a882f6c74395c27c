"""The least booked work among those that hold nearly all of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order


@dataclass(frozen=True, slots=True)
class LlmdToken:
    """llm-d's default of 2026-08 (`shared/bench/peer-features.md`, 3): a filter, then booked tokens.

    The best published one of `shared/bench/policy-study.md`, whose gate this is. Candidates that hold
    a share of the prompt take part; where there are such, a colder one does only if it has less
    booked than the least booked of them, by the gate's seconds. The cost is in tokens: those
    booked and not computed, this prompt's included. Who takes no part follows.
    """

    affinity: float = 0.8
    """The share of the prompt that is warm enough."""
    gate: float = 14.0
    """Seconds."""
    per_token: float = 70e-6
    """Seconds for a booked token: what turns the gate into tokens."""

    def __post_init__(self) -> None:
        check_option("affinity", self.affinity, highest=1.0)
        check_option("gate", self.gate)
        check_option("per-token", self.per_token, lowest=1e-9)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost of those that take part first."""
        enough = self.affinity * request.prompt_tokens
        warm = [one.load.waiting_uncached_tokens for one in candidates if one.cached >= enough]
        sooner = min(warm) - self.gate / self.per_token if warm else 0.0
        costs = [
            float(one.load.waiting_uncached_tokens + request.prompt_tokens - one.cached)
            for one in candidates
        ]
        apart = 1.0 + 2.0 * max(costs)
        ranked = []
        for one, cost in zip(candidates, costs, strict=True):
            booked = one.load.waiting_uncached_tokens
            takes_part = not warm or one.cached >= enough or booked <= sooner
            outside = 0.0 if takes_part else apart
            uncached = float(request.prompt_tokens - one.cached)
            terms = (("booked", float(booked)), ("uncached", uncached), ("outside", outside))
            ranked.append(Ranked(one, cost + outside, terms))
        return in_order(ranked, rng)
