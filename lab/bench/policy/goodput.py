"""Goodput: the highest load at which requests do not wait too long.

At least 90 % of requests get their first token within 5 s, and 90 % the others within 150 ms each. The
loads are searched in steps, from one in the middle; between the highest that holds and the next one the
figure that breaks its limit first is interpolated, its logarithm being nearly straight.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from warmpath.lab.bench.policy.grid import Extent, ours
from warmpath.lab.bench.policy.kept import Kept
from warmpath.lab.simulate.cell import ENGINE_KINDS, Cell
from warmpath.lab.simulate.study import BEST_PUBLISHED

TTFT_SECONDS = 5.0
TPOT_MS = 150.0
PODS = 8
BLOCKS = (1500, 10_000)
FIRST, STEP = 0.6, 0.1
LEAST, MOST = 0.1, 1.2


@dataclass(frozen=True, slots=True)
class Goodput:
    """The highest loads that hold, in one traffic on one fleet."""

    trace: str
    engine: str
    blocks: int
    loads: Mapping[str, float]
    """Policy -> the highest load that holds."""

    def ratio(self, policy: str) -> float:
        """Return a policy's goodput over the best published policy's."""
        return self.loads[policy] / self.loads[BEST_PUBLISHED]


def places(extent: Extent) -> list[Cell]:
    """Return a cell for each fleet and traffic; its load is the first to try."""
    found = [
        extent.place(source, engine, PODS, blocks, FIRST)
        for engine, blocks, source in product(ENGINE_KINDS, BLOCKS, extent.sources())
    ]
    return (
        [one for one in found if one.engine == "serial" and one.blocks_per_pod == BLOCKS[0]][:1]
        if extent.quick
        else found
    )


def search(kept: Kept, extent: Extent) -> list[Goodput]:
    """Search all places; return the goodput of those in which all policies could be run."""
    searches = {
        place: [_Search(policy, extent) for policy in (place, *ours(place))]
        for place in places(extent)
    }
    while True:
        missing = [
            cell for policies in searches.values() for one in policies for cell in one.missing(kept)
        ]
        kept.run(missing)
        if not any(kept.figures(cell) for cell in missing):
            break
    found = []
    for place, policies in searches.items():
        loads = {one.cell.title: one.found(kept) for one in policies}
        known = {policy: load for policy, load in loads.items() if load is not None}
        if len(known) == len(loads):
            [first] = kept.of_seeds(place, extent.seeds[:1])
            found.append(Goodput(first.trace, place.engine, place.blocks_per_pod, known))
    return found


class _Search:
    """The search of one policy's goodput in one place."""

    def __init__(self, cell: Cell, extent: Extent) -> None:
        self.cell = cell
        self._seeds = extent.seeds

    def missing(self, kept: Kept) -> list[Cell]:
        """Return the cells to run next; none if the search is over."""
        load = next((load for load, limit in self._steps(kept) if limit is None), None)
        if load is None:
            return []
        return [one for one in self._cells(load) if kept.figures(one) is None]

    def found(self, kept: Kept) -> float | None:
        """Return the highest load that holds; None if the search is not over."""
        limits = dict(self._steps(kept))
        if None in limits.values():
            return None
        known = sorted((load, limit) for load, limit in limits.items() if limit is not None)
        before: tuple[float, float] | None = None
        for load, limit in known:
            if limit > 1.0:
                if before is None:
                    return load  # an upper bound: not even the least load holds
                low, below = before
                share = -math.log(below) / (math.log(limit) - math.log(below))
                return low + share * (load - low)
            before = load, limit
        return known[-1][0]

    def _steps(self, kept: Kept) -> Iterator[tuple[float, float | None]]:
        """Yield each load of the search with its `_limit`: above 1 it does not hold; None: not run."""
        load = FIRST
        limit = self._limit(kept, load)
        yield load, limit
        if limit is None:
            return
        step = STEP if limit <= 1.0 else -STEP
        while LEAST <= (load := round(load + step, 4)) <= MOST:
            limit = self._limit(kept, load)
            yield load, limit
            if limit is None or (limit <= 1.0) == (step < 0):
                return

    def _cells(self, load: float) -> list[Cell]:
        return [replace(self.cell, load=load, seed=seed) for seed in self._seeds]

    def _limit(self, kept: Kept, load: float) -> float | None:
        """Return the greater of both times divided by their limits; None: a seed was not run."""
        found = [kept.figures(cell) for cell in self._cells(load)]
        rows = [one for one in found if one is not None]
        if len(rows) < len(found):
            return None
        ttft = statistics.median(row.ttft_p90_s for row in rows) / TTFT_SECONDS
        tpot = statistics.median(row.tpot_p90_ms for row in rows) / TPOT_MS
        return max(ttft, tpot)


def mean(found: Sequence[Goodput], policy: str) -> float:
    """Return the geometric mean of a policy's ratios (`Goodput.ratio`)."""
    return statistics.geometric_mean(one.ratio(policy) for one in found)


def row_of(one: Goodput) -> dict[str, Any]:
    """Return a goodput as an object for JSON."""
    return {
        "trace": one.trace,
        "engine": one.engine,
        "pods": PODS,
        "blocks": one.blocks,
        "loads": {policy: round(load, 4) for policy, load in one.loads.items()},
        "ratios": {policy: round(one.ratio(policy), 4) for policy in one.loads},
    }
