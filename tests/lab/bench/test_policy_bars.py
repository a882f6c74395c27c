"""The default policy against the best published one, and with wrong inputs: seeded, nothing is timed.

Small cells near saturation; `python -m warmpath.lab.bench pick` has the whole matrix.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any

import pytest

from warmpath.lab.demo.setting import TRACE
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.run import run
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.lab.simulate.traffic.generated import KINDS, Generated
from warmpath.scorer.policy import DEFAULT

pytestmark = pytest.mark.deep

SLICES = (
    Cell(TRACE, DEFAULT, pods=4, blocks_per_pod=500, load=0.75),
    Cell(TRACE, DEFAULT, pods=3, blocks_per_pod=1000, load=0.85),
)
LOADS: Mapping[str, float] = {
    "docs": 0.4,
    "agent": 0.4,
    "bursts": 0.3,
    "tenants": 0.5,
    "reading": 0.6,
}
"""Where waits begin to grow: how much decoding comes on top differs."""

WRONG: Mapping[str, dict[str, float]] = {
    "costs x 0.5": {"estimate_factor": 0.5},
    "costs x 2": {"estimate_factor": 2.0},
    "events 5 s late": {"event_delay": 5.0},
    "a third without events": {"no_events_share": 1 / 3},
    "all, costs x 0.5": {"estimate_factor": 0.5, "event_delay": 5.0, "no_events_share": 1 / 3},
    "all, costs x 2": {"estimate_factor": 2.0, "event_delay": 5.0, "no_events_share": 1 / 3},
}

FAULTY: Mapping[str, tuple[dict[str, Any], float]] = {
    "every second pod 3 x as slow": ({"factors": (1.0, 3.0) * 4}, 2.0),
    "first tokens not reported": ({"reports": "ends"}, 1.25),
    "nothing reported": ({"reports": "none"}, 1.25),
    "nothing reported, no metrics": ({"reports": "none", "scrape": inf}, 1.25),
}
"""What is wrong with a fleet or its gateways, and how much longer requests may wait for it."""


def generated(kind: str) -> Cell:
    source = Generated(kind, seed=2)
    return Cell(source, DEFAULT, pods=8, blocks_per_pod=1500, load=LOADS[kind], requests=1500)


@lru_cache(maxsize=64)
def outcome(cell: Cell) -> Figures:
    return run(cell)


def p90_to_the_best_published(cell: Cell) -> float:
    theirs = outcome(replace(cell, policy=BEST_PUBLISHED))
    return outcome(cell).ttft_p90_s / theirs.ttft_p90_s


@pytest.mark.parametrize("cell", SLICES, ids=["4 pods", "3 pods"])
def test_a_recorded_trace_waits_less_and_finds_most_of_what_is_cached(cell: Cell) -> None:
    assert p90_to_the_best_published(cell) <= 0.85
    assert outcome(cell).hit_share >= 0.88


def test_traffic_that_nothing_was_tuned_on_waits_less() -> None:
    ratios = {kind: p90_to_the_best_published(generated(kind)) for kind in KINDS}
    assert max(ratios.values()) <= 1.05, ratios
    assert statistics.geometric_mean(ratios.values()) <= 0.9, ratios


def test_a_burst_of_prompts_with_one_beginning_computes_it_on_few_pods() -> None:
    cell = replace(generated("bursts"), trace=Generated("bursts"), engine="vllm", load=0.5)
    found = outcome(replace(cell, blocks_per_pod=10_000, requests=1000))
    assert found.hit_share >= 0.855  # 0.842 where a wait for that beginning counted in full, nearly


def test_two_equal_engines_that_are_faster_than_was_said_hold_as_much_as_with_equal_load() -> None:
    cell = Cell(TRACE, DEFAULT, pods=2, blocks_per_pod=400, load=0.1, requests=200, engine="vllm")
    found = outcome(replace(cell, estimate_factor=10.0))
    even = outcome(replace(cell, policy="load-band"))
    assert found.token_hit_ratio >= 0.95 * even.token_hit_ratio
    assert found.ttft_p90_s <= 1.05 * even.ttft_p90_s


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("cell", [SLICES[1], generated("docs")], ids=["slice", "docs"])
def test_wrong_inputs_do_not_break_it(cell: Cell, wrong: str) -> None:
    changed: Any = WRONG[wrong]
    assert outcome(replace(cell, **changed)).ttft_p90_s <= 1.25 * outcome(cell).ttft_p90_s


@pytest.mark.parametrize("fault", FAULTY)
def test_unlike_pods_and_lost_reports_cost_no_more_than_they_must(fault: str) -> None:
    changed, most = FAULTY[fault]
    cell = generated("docs")
    assert outcome(replace(cell, **changed)).ttft_p90_s <= most * outcome(cell).ttft_p90_s
