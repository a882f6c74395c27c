"""Each in its turn, whatever it holds or has to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.order import in_order


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The one that was picked longest ago; those never picked come first.

    The cost counts picks: how much later a candidate's last one was than that of the first in line.
    Candidates may come and go, which a pointer into a fixed ring would not bear.
    """

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the one picked longest ago first."""
        del request
        oldest = min(one.load.last_pick for one in candidates)
        return in_order(
            [Ranked(one, float(one.load.last_pick - oldest)) for one in candidates], rng
        )
