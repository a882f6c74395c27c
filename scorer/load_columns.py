"""Loads as columns: an array for each figure of `scorer.candidate.Load`, by the same name."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.candidate import Load

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoadColumns:
    """What many ranks have to do already; a place in each column is one rank's."""

    wait: Column
    waiting: Column
    in_flight: Column
    waiting_uncached_tokens: Column
    waiting_prompt_tokens: Column
    context_tokens: Column
    queue: Column
    kv_usage: Column
    last_pick: Column

    def at(self, place: int) -> Load:
        """Return one rank's load."""
        return Load(
            float(self.wait[place]),
            int(self.waiting[place]),
            int(self.in_flight[place]),
            int(self.waiting_uncached_tokens[place]),
            int(self.waiting_prompt_tokens[place]),
            int(self.context_tokens[place]),
            int(self.queue[place]),
            float(self.kv_usage[place]),
            int(self.last_pick[place]),
        )


def columns_of(loads: Sequence[Load]) -> LoadColumns:
    """Return the figures of these loads, in this order."""
    rows = np.array(loads, dtype=np.float64).reshape(len(loads), len(Load._fields))
    return LoadColumns(*np.ascontiguousarray(rows.T))
