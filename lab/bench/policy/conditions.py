"""Conditions under which a gain may get lost: unlike pods, faulty reports, several routers, a dead pod.

They are those of the policy study's fault table (`lab.simulate.study`), and a few more.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from warmpath.lab.bench.policy.grid import Extent, ours
from warmpath.lab.bench.policy.kept import Kept
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.lab.simulate.traffic.generated import Generated

PODS, BLOCKS = 8, 1500
LOADS: Mapping[str, float] = {"conversation": 0.7, "reading": 0.6}
"""Traffic -> its load: below saturation, where waits have begun to grow."""

CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "nothing is wrong": {},
    "every second pod 2 x as slow": {"factors": (1.0, 2.0) * (PODS // 2)},
    "every second pod 3 x as slow": {"factors": (1.0, 3.0) * (PODS // 2)},
    "reports 0.1 s late": {"report_delay": 0.1},
    "reports 0.2 s late": {"report_delay": 0.2},
    "reports 0.5 s late": {"report_delay": 0.5},
    "reports 2 s late": {"report_delay": 2.0},
    "a tenth of reports lost": {"lost_reports": 0.1},
    "first tokens not reported": {"reports": "ends"},
    "nothing reported": {"reports": "none"},
    "nothing reported, no metrics": {"reports": "none", "scrape": inf},
    "metrics never read": {"scrape": inf},
    "events 2 s late": {"event_delay": 2.0},
    "costs x 0.5": {"estimate_factor": 0.5},
    "costs x 2": {"estimate_factor": 2.0},
    "3 routers, bookings shared": {"routers": 3},
    "3 routers, nothing shared": {"routers": 3, "bookings": "apart"},
    "3 routers by session, nothing shared": {
        "routers": 3,
        "routers_by": "session",
        "bookings": "apart",
    },
    "a pod is dead for 60 s": {"outage": 60.0},
}


@dataclass(frozen=True, slots=True)
class Suffered:
    """Policies under a condition: (p90, p99) of the time to first token, seconds, medians over seeds."""

    traffic: str
    condition: str
    baseline: tuple[float, float]
    """(p90, p99) of the study's best published policy."""
    unqueued: tuple[float, float]
    queued: tuple[float, float]

    @property
    def ratios(self) -> dict[str, float]:
        """The ratios of the p90 that have goals, by their names."""
        baseline, unqueued, queued = self.baseline[0], self.unqueued[0], self.queued[0]
        return {
            "unqueued_to_baseline": unqueued / baseline,
            "queued_to_baseline": queued / baseline,
            "queued_to_unqueued": queued / unqueued,
        }


def cells(extent: Extent) -> list[tuple[str, str, Cell]]:
    """Return (traffic, the condition's name, place) of each condition."""
    sources = {"conversation": extent.sources()[0], "reading": Generated("reading")}
    return [
        (
            traffic,
            name,
            replace(extent.place(sources[traffic], "serial", PODS, BLOCKS, load), **changed),
        )
        for traffic, load in LOADS.items()
        for name, changed in CONDITIONS.items()
        if not extent.quick or name in ("reports 0.5 s late", "a pod is dead for 60 s")
    ]


def to_run(extent: Extent) -> list[Cell]:
    """Return the cells to run, those of the first seed first."""
    return [
        replace(cell, seed=seed)
        for seed in extent.seeds
        for _, _, place in cells(extent)
        for cell in (place, *ours(place))
    ]


def suffered(kept: Kept, extent: Extent) -> list[Suffered]:
    """Return the outcome of each condition that was run."""
    found = []
    for traffic, name, place in cells(extent):
        rows = [kept.of_seeds(cell, extent.seeds) for cell in (place, *ours(place))]
        if all(rows):
            found.append(Suffered(traffic, name, *map(_p90_p99, rows)))
    return found


def _p90_p99(rows: Sequence[Figures]) -> tuple[float, float]:
    return (
        statistics.median(row.ttft_p90_s for row in rows),
        statistics.median(row.ttft_p99_s for row in rows),
    )


def row_of(one: Suffered) -> dict[str, Any]:
    """Return an outcome as an object for JSON."""
    return {
        "traffic": one.traffic,
        "condition": one.condition,
        BEST_PUBLISHED: one.baseline,
        "unqueued": one.unqueued,
        "queued": one.queued,
        **{name: round(ratio, 4) for name, ratio in one.ratios.items()},
    }
