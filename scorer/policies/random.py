"""Any candidate, drawn at random: the floor that every other policy has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.order import in_order


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """The cost is a draw from 0 to 1.

    Were it the same for all, the tie rule would look at load and warmth.
    """

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates in a random order."""
        del request
        return in_order([Ranked(one, rng.random()) for one in candidates], rng)
