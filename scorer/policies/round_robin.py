"""Each in its turn, whatever it holds or has to do."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The one that was picked longest ago; those never picked come first.

    The cost counts picks: how much later a candidate's last one was than that of the first in line.
    Candidates may come and go, which a pointer into a fixed ring would not bear.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return how much later each was picked than the first in line."""
        del request, rng
        last_pick = columns.load.last_pick
        return Costs(last_pick - last_pick.min())
