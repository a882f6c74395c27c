"""Any candidate, drawn at random: the floor that every other policy has to beat."""

from dataclasses import dataclass
from random import Random

import numpy as np

from scorer.candidate import Request
from scorer.columns import Columns, Costs


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """The cost is a draw from 0 to 1.

    Were it the same for all, the tie rule would look at load and warmth.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return draws."""
        del request
        return Costs(np.array([rng.random() for _ in columns.names]))
