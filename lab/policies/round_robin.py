"""The policy that picks candidates in turn, regardless of cache and load."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Picks the candidate whose last pick is longest ago; those never picked come first.

    The cost is the number of a candidate's last pick minus the least of these numbers. Unlike a pointer
    into a fixed ring, this works when candidates come and go.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the number of each candidate's last pick, minus the least."""
        del request, rng
        last_pick = columns.load.last_pick
        return Costs(last_pick - last_pick.min())
