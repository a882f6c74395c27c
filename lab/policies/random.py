"""The policy that draws a candidate at random: the baseline for every other policy."""

from dataclasses import dataclass
from random import Random

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """Orders candidates at random; the cost is a draw from 0 to 1.

    With equal costs the tie rule would order them by load and cached tokens.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return a random draw for each candidate."""
        del request
        return Costs(np.array([rng.random() for _ in columns.names]))
