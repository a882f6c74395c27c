"""Picks that wait in the simulated router's queue."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.demo.setting import TRACE
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.command import main
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.run import run
from warmpath.lab.simulate.traffic.generated import Generated
from warmpath.lab.simworker.latency import LatencyModel, StepWork

CELL = Cell(TRACE, "warmpath", pods=4, blocks_per_pod=500, load=0.7, requests=300, queue=True)


def outcome(cell: Cell) -> Figures:
    return replace(run(cell), seconds=0.0, settings={}, policy="")


def prefill(new: int) -> float:
    return LatencyModel().step(StepWork([(new, 0)]))


def write(tmp_path: Path, *requests: tuple[int, int]) -> Path:
    """Write a trace of cold prompts: their milliseconds and blocks."""
    path = tmp_path / "trace.jsonl"
    fresh = iter(range(1_000_000))
    lines = [
        {
            "timestamp": at,
            "input_length": 512 * blocks,
            "output_length": 1,
            "hash_ids": [next(fresh) for _ in range(blocks)],
        }
        for at, blocks in requests
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_short_prompt_goes_before_a_long_one_that_waits(tmp_path: Path) -> None:
    # The first ones tell that first tokens are reported; then a long one is under way.
    known = [(1000 * number, 1) for number in range(20)]
    path = write(tmp_path, *known, (30_000, 80), (30_100, 80), (30_200, 1))
    cell = Cell(path, "warmpath", pods=1, blocks_per_pod=500, speed=1.0)
    at_once, queued = run(cell), run(replace(cell, queue=True))
    long = prefill(80 * 512)
    # At once, the short one waits for both.
    assert at_once.ttft_curve_s[-10] == pytest.approx(2 * long - 0.1, rel=0.02)
    both = sorted(queued.ttft_curve_s)[-19:]
    assert both[0] == pytest.approx(long + prefill(512) - 0.2, rel=0.05)
    assert both[-1] == pytest.approx(2 * long + prefill(512) - 0.1, rel=0.02)
    assert queued.makespan_s == pytest.approx(at_once.makespan_s, rel=0.01)


def test_an_engine_that_orders_by_priority_begins_a_short_prompt_before_a_long_one(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, (0, 80), (100, 80), (200, 1))
    cell = Cell(path, "warmpath", pods=1, blocks_per_pod=500, speed=1.0, engine="vllm")
    in_turn, by_priority = run(cell), run(replace(cell, engine_priority=True))
    long = prefill(80 * 512)
    assert in_turn.ttft_curve_s[100] == pytest.approx(2 * long - 0.2, rel=0.1)
    assert by_priority.ttft_curve_s[0] == pytest.approx(long - 0.2, rel=0.1)
    assert by_priority.makespan_s == pytest.approx(in_turn.makespan_s, rel=0.01)
    assert by_priority.policy == "warmpath, by engine priority"


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["serial", "vllm"])
def test_the_same_cell_has_the_same_figures(engine: Any) -> None:
    cell = replace(CELL, engine=engine, requests=150)
    assert outcome(cell) == outcome(cell)
    assert outcome(cell) != outcome(replace(cell, queue=False))


def test_an_idle_fleet_has_nothing_to_wait_for() -> None:
    cell = replace(CELL, load=0.05)
    queued, at_once = run(cell), run(replace(cell, queue=False))
    for figure in ("ttft_p50_s", "ttft_p90_s", "ttft_mean_s"):
        assert getattr(queued, figure) == pytest.approx(getattr(at_once, figure), rel=0.03)


def test_nothing_waits_where_first_tokens_are_not_reported() -> None:
    for reports in ("ends", "none"):
        cell = replace(CELL, reports=reports)
        assert outcome(cell) == outcome(replace(cell, queue=False))


@pytest.mark.deep
@pytest.mark.parametrize(
    "changed",
    [
        {"policy": "llmd-token"},
        {"policy": "weighted@record=1@arriving=0"},
        {"policy": "pooled"},
        {"routers": 3},
        {"routers": 3, "bookings": "apart", "routers_by": "session"},
        {"report_delay": 0.5},
        {"lost_reports": 0.2},
        {"outage": 20.0},
        {"outage": 20.0, "routers": 2, "engine": "vllm", "report_delay": 0.2},
        {"engine": "vllm", "engine_priority": True},
        {"factors": (1.0, 2.0, 1.0, 2.0)},
    ],
    ids=str,
)
def test_every_request_is_served_whatever_is_wrong(changed: dict[str, Any]) -> None:
    found = run(replace(CELL, requests=150, **changed))
    assert found.requests == 150
    assert 0 < found.ttft_p50_s <= found.ttft_p99_s < 600


def test_long_prompts_hold_up_fewer() -> None:
    cell = Cell(Generated("reading"), "warmpath", 4, 1500, 0.7, requests=600)
    at_once, queued = run(cell), run(replace(cell, queue=True))
    assert queued.ttft_mean_s < 0.95 * at_once.ttft_mean_s
    assert queued.ttft_p90_s < at_once.ttft_p90_s


def test_a_table_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--trace", str(TRACE), "--requests", "60", "--processes", "1", "--queue", "off,on"]
    assert main([*args, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["warmpath", "warmpath, queued"]
    assert [row["settings"]["queue"] for row in rows] == [False, True]
    assert main(args) == 0
    assert "warmpath, queued" in capsys.readouterr().out
