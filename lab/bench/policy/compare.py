"""The figures of a place (`grid.py`): ours, the baseline's, the best published one's, and ratios."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warmpath.lab.bench.policy.grid import NEAR, PEERS, ours
from warmpath.lab.bench.policy.kept import Kept
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.lab.simulate.summary import median

TIMES = ("ttft_p50_s", "ttft_mean_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s")
OTHERS = ("tpot_p90_ms", "hit_share", "imbalance", "utilisation")
OVERLOADED = 20.0
"""Seconds of the baseline's p90 time to first token above which a place is overloaded; its figures then
say how fast it drains."""


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Medians over seeds in one place, by policy."""

    trace: str
    engine: str
    pods: int
    blocks: int
    load: float
    best: str
    """The published policy with the least p90 time to first token."""
    figures: Mapping[str, Mapping[str, float]]

    @property
    def overloaded(self) -> bool:
        """Whether requests come faster than the baseline can serve them."""
        return self.figures[BEST_PUBLISHED]["ttft_p90_s"] > OVERLOADED

    def ratio(self, policy: str, name: str, to: str = BEST_PUBLISHED) -> float:
        return self.figures[policy][name] / max(self.figures[to][name], 1e-9)


def second_round(kept: Kept, places: Sequence[Cell], seeds: Sequence[int]) -> list[Cell]:
    """Return the cells of further seeds: ours, the baseline's, and those of peers near the best one."""
    found = []
    for place in places:
        peers = {peer: kept.figures(replace(place, policy=peer)) for peer in PEERS}
        known = {peer: one.ttft_p90_s for peer, one in peers.items() if one is not None}
        if len(known) < len(PEERS):
            continue
        near = NEAR * min(known.values())
        chosen = [peer for peer, p90 in known.items() if p90 <= near or peer == BEST_PUBLISHED]
        cells = [*ours(place), *(replace(place, policy=peer) for peer in chosen)]
        found += [replace(cell, seed=seed) for seed in seeds[1:] for cell in cells]
    return found


def compared(kept: Kept, place: Cell, seeds: Sequence[int]) -> Compared | None:
    """Return the comparison of a place; None if a policy has not been run there."""
    rows: dict[str, list[Figures]] = {}
    for cell in (*ours(place), *(replace(place, policy=peer) for peer in PEERS)):
        rows[cell.title] = kept.of_seeds(cell, seeds)
    if not all(rows.values()):
        return None
    first = rows[BEST_PUBLISHED][0]
    return Compared(
        first.trace,
        first.engine,
        first.pods,
        first.blocks_per_pod,
        first.load,
        best=min(PEERS, key=lambda peer: median(rows[peer], "ttft_p90_s")),
        figures={
            policy: {name: median(found, name) for name in (*TIMES, *OTHERS)}
            for policy, found in rows.items()
        },
    )


@dataclass(frozen=True, slots=True)
class ComparedStanding:
    """One policy over several places; ratios are to the baseline unless they say otherwise."""

    places: int
    means: Mapping[str, float]
    """Figure -> the geometric mean of its ratios."""
    best_mean: float
    """Geometric mean of the ratios of the p90 to that of each place's best published policy."""
    worst: float
    """The greatest ratio of the p90 to the baseline's."""
    worst_to_best: float
    worst_p99: float
    worst_place: str


def standing(policy: str, places: Sequence[Compared]) -> ComparedStanding:
    """Return a policy's standing over `places`, at least one."""
    to_best = {one: one.ratio(policy, "ttft_p90_s", one.best) for one in places}
    worst = max(to_best, key=lambda one: to_best[one])
    return ComparedStanding(
        len(places),
        {
            name: statistics.geometric_mean(max(one.ratio(policy, name), 1e-9) for one in places)
            for name in (*TIMES, *OTHERS)
        },
        best_mean=statistics.geometric_mean(to_best.values()),
        worst=max(one.ratio(policy, "ttft_p90_s") for one in places),
        worst_to_best=to_best[worst],
        worst_p99=max(one.ratio(policy, "ttft_p99_s") for one in places),
        worst_place=name_of(worst),
    )


def name_of(one: Compared) -> str:
    """Return a place's name."""
    return f"{one.trace}, {one.engine}, {one.pods} x {one.blocks:,}, {one.load:g}"


def groups(places: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Return, by name, all places, those not overloaded, and those of each engine and traffic."""
    found: dict[str, list[Compared]] = {"all": [*places], "not overloaded": []}
    for one in places:
        if not one.overloaded:
            found["not overloaded"].append(one)
        found.setdefault(f"engine {one.engine}", []).append(one)
        found.setdefault(one.trace, []).append(one)
    return {name: ones for name, ones in found.items() if ones}


def row_of(one: Compared) -> dict[str, Any]:
    """Return a comparison for JSON: figures of all policies, and ratios of ours."""
    from_ours = [policy for policy in one.figures if policy not in PEERS]
    return {
        "trace": one.trace,
        "engine": one.engine,
        "pods": one.pods,
        "blocks": one.blocks,
        "load": one.load,
        "overloaded": one.overloaded,
        "best_published": one.best,
        "figures": {policy: dict(figures) for policy, figures in one.figures.items()},
        "ratios": {
            policy: {
                to: {name: round(one.ratio(policy, name, to), 4) for name in (*TIMES, *OTHERS)}
                for to in dict.fromkeys((BEST_PUBLISHED, one.best))
            }
            for policy in from_ours
        },
    }
