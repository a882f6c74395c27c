"""Loads as columns: an array for each figure of `scorer.candidate.Load`, by the same name."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.scorer.candidate import Load

Column = NDArray[np.float64]


class LoadColumns(NamedTuple):
    """The loads of many ranks; each column has one element per rank."""

    wait: Column
    waiting: Column
    in_flight: Column
    waiting_uncached_tokens: Column
    waiting_prompt_tokens: Column
    context_tokens: Column
    queue: Column
    kv_usage: Column
    last_pick: Column
    foreign_wait: Column
    is_batch_full: Column

    def at(self, places: NDArray[np.intp]) -> Iterator[Load]:
        """Yield the loads of the ranks at these indices."""
        for (
            wait,
            waiting,
            in_flight,
            uncached,
            prompt,
            context,
            queue,
            kv_usage,
            last_pick,
            foreign_wait,
            is_batch_full,
        ) in np.array(self)[:, places].T.tolist():
            yield Load(
                wait,
                int(waiting),
                int(in_flight),
                int(uncached),
                int(prompt),
                int(context),
                int(queue),
                kv_usage,
                int(last_pick),
                foreign_wait,
                bool(is_batch_full),
            )


def columns_of(loads: Sequence[Load]) -> LoadColumns:
    """Return these loads as columns, in this order."""
    figures = np.fromiter(chain.from_iterable(loads), np.float64)
    return LoadColumns(*np.ascontiguousarray(figures.reshape(len(loads), len(Load._fields)).T))
