"""Which pod should take a prompt: warmth against outstanding load.

The rule: a candidate costs the tokens that are booked on it and not computed yet, plus the tokens of
this prompt that it would have to compute. Both are prefill work of the same kind, so they add up to
how long the prompt waits for its first token, in tokens. The cheapest wins; among equals the one
with fewer requests in flight, then the warmer one, then one drawn at random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Candidate:
    """One rank that could take the prompt."""

    pod: str
    rank: int
    warmth: float
    """The strategy's score of it, in tokens."""
    outstanding: int
    """Tokens booked on it and not computed yet."""
    in_flight: int
    """Requests booked on it and not finished."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its cost, in tokens."""

    candidate: Candidate
    cost: float


def pick(candidates: Sequence[Candidate], prompt_tokens: int, rng: Random) -> list[Ranked]:
    """Return the candidates, best first."""
    ranked = [
        Ranked(candidate, candidate.outstanding + max(0.0, prompt_tokens - candidate.warmth))
        for candidate in candidates
    ]
    rng.shuffle(ranked)
    ranked.sort(key=lambda one: (one.cost, one.candidate.in_flight, -one.candidate.warmth))
    return ranked
