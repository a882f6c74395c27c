"""Waiting times with our policy and with published ones, in simulations.

The published policies (`PEERS`) were the best in one cell of the study (a number of pods, a cache
size and a load), or are well known. Traffic is the study's trace if it lies beside the checkout, else
the slice of it in this repository.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from bench.figure import Figure
from router.commands.local.demo import TRACE
from router.commands.simulate.cell import Cell
from router.commands.simulate.run import run
from router.commands.simulate.study import (
    BEST_PUBLISHED,
    MATRIX_BLOCKS,
    MATRIX_LOADS,
    MATRIX_PODS,
    PUBLISHED,
)
from router.commands.simulate.summary import Place, by_cell, median
from scorer.policy import DEFAULT

PEERS = tuple(
    PUBLISHED[name]
    for name in (
        "llmd_token+spec",
        "lmetric+spec",
        "preble+spec",
        "llmd_ratio+spec",
        "band+spec",
        "dynamo+spec@ow=4",
        "approx",
    )
)
STUDY_TRACE = (
    Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake-conversation.jsonl.gz"
)
PROCESSES = 2
QUICK_REQUESTS = 3000

P90 = Mapping[Place, Mapping[str, float]]
"""Place -> policy -> p90 of the time to the first token, in seconds (median of its rows)."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure all cells of the study, or two on the trace's beginning."""
    cells = list(_cells(quick=quick))
    return [*_against_the_published(cells), _on_vllms_scheduler(cells)]


def _cells(*, quick: bool) -> Iterator[Cell]:
    trace = STUDY_TRACE if STUDY_TRACE.exists() else TRACE
    for pods in MATRIX_PODS:
        for blocks in MATRIX_BLOCKS:
            for load in MATRIX_LOADS:
                if not quick or (pods, blocks) == (MATRIX_PODS[1], MATRIX_BLOCKS[0]):
                    yield Cell(
                        trace, DEFAULT, pods, blocks, load, requests=QUICK_REQUESTS if quick else 0
                    )


def _run(cells: Sequence[Cell], policies: Sequence[str]) -> tuple[P90, list[float]]:
    """Return waiting times, and the default policy's hit ratios as shares of the ceiling."""
    asked = [replace(cell, policy=policy) for cell in cells for policy in policies]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        found = by_cell(pool.map(run, asked))
    p90 = {
        place: {policy: median(rows, "ttft_p90_s") for policy, rows in one.items()}
        for place, one in found.items()
    }
    return p90, [median(one[DEFAULT], "hit_share") for one in found.values()]


def _against_the_published(cells: Sequence[Cell]) -> Iterator[Figure]:
    p90, hits = _run(cells, (DEFAULT, *PEERS))
    name = f"{len(cells)} cells of {next(iter(p90))[0]}"
    ours = [cell[DEFAULT] for cell in p90.values()]
    best = [min(cell[peer] for peer in PEERS) for cell in p90.values()]
    yield _to_the_best_single_one(f"TTFT p90, {name}", p90, goal=0.80)
    yield Figure(
        f"TTFT p90, {name}",
        statistics.geometric_mean(ours), "s", statistics.geometric_mean(best),
        f"each cell's best of {', '.join(PEERS)}", goal=0.88,
    )  # fmt: skip
    value, peer = max(zip(ours, best, strict=True), key=lambda one: one[0] / one[1])
    yield Figure(f"TTFT p90, the worst of {name}", value, "s", peer, "its best of these", goal=1.08)
    for what, share, goal in (
        ("tokens found cached, mean", statistics.fmean(hits), 0.92),
        ("tokens found cached, least", min(hits), 0.88),
    ):
        yield Figure(
            f"{what}, {name}", 100 * share, "%", 100.0, "what one cache of all pods' size finds",
            goal=goal, least=True,
        )  # fmt: skip


def _on_vllms_scheduler(cells: Sequence[Cell]) -> Figure:
    p90, _ = _run([replace(cell, engine="vllm") for cell in cells], (DEFAULT, BEST_PUBLISHED))
    return _to_the_best_single_one(
        f"TTFT p90 with vLLM's scheduler, {len(cells)} cells", p90, goal=0.88
    )


def _to_the_best_single_one(name: str, p90: P90, goal: float) -> Figure:
    ours, theirs = (
        statistics.geometric_mean(cell[policy] for cell in p90.values())
        for policy in (DEFAULT, BEST_PUBLISHED)
    )
    return Figure(name, ours, "s", theirs, BEST_PUBLISHED, goal=goal)
