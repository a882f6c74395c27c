"""Unlike pods, late reports, several routers, a pod that dies, and traffic as it was."""

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
from warmpath.lab.simworker.latency import LatencyModel, StepWork

CELL = Cell(TRACE, "warmpath", pods=4, blocks_per_pod=400, load=0.6, requests=300)


def outcome(cell: Cell) -> Figures:
    return replace(run(cell), seconds=0.0, settings={})


def prefill(new: int) -> float:
    return LatencyModel().step(StepWork([(new, 0)]))


def write(tmp_path: Path, *arrivals: int, block: int | None = None) -> Path:
    """Write a trace of one block, a new one or always the same, at each of these milliseconds."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": at,
            "input_length": 512,
            "output_length": 1,
            "hash_ids": [at if block is None else block],
        }
        for at in arrivals
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def simulate(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    status = main(["--trace", str(TRACE), "--requests", "60", "--processes", "1", "--json", *args])
    assert status == 0
    return json.loads(capsys.readouterr().out)


def test_traffic_comes_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, 0, 4000, 10_000)
    found = run(Cell(path, "warmpath", pods=2, blocks_per_pod=10, speed=1.0))
    assert found.speed == 1.0
    assert found.makespan_s == pytest.approx(10 + prefill(512), abs=0.01)
    assert found.load == pytest.approx(3 * prefill(512) / (2 * 10), abs=1e-4)
    # The same load has the same speed.
    back = run(Cell(path, "warmpath", pods=2, blocks_per_pod=10, load=found.load))
    assert back.speed == pytest.approx(1.0, rel=0.01)


def test_unlike_pods_take_their_times(tmp_path: Path) -> None:
    path = write(tmp_path, *range(0, 100_000, 10_000))
    cell = Cell(path, "round-robin", pods=2, blocks_per_pod=10, speed=1.0, factors=(1.0, 3.0))
    found = run(cell)
    assert found.ttft_curve_s[0] == pytest.approx(prefill(512), abs=1e-4)
    assert found.ttft_p99_s == pytest.approx(3 * prefill(512), abs=1e-4)
    # Both pods together have four thirds of one pod's capacity.
    alike = run(replace(cell, factors=()))
    assert found.load == pytest.approx(alike.load * 2 / (4 / 3), abs=1e-4)


def test_a_fleet_of_unlike_pods_is_one_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(capsys, "--pods", "2x1,1x2.5")
    assert (found["pods"], found["settings"]["factors"]) == (3, [1.0, 1.0, 2.5])
    assert [row["pods"] for row in simulate(capsys, "--pods", "2,3")] == [2, 3]


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["serial", "vllm"])
def test_late_reports_change_only_what_listens_to_them(engine: Any) -> None:
    cell = replace(CELL, engine=engine)
    assert outcome(cell) != outcome(replace(cell, report_delay=2.0))
    deaf = replace(cell, policy="round-robin")
    assert outcome(deaf) == outcome(replace(deaf, report_delay=2.0))


@pytest.mark.deep
def test_reports_that_are_lost_change_only_what_listens_to_them() -> None:
    cell = replace(CELL, scrape=1e9)
    none = outcome(replace(cell, reports="none"))
    assert outcome(replace(cell, lost_reports=1.0)) == none
    assert outcome(replace(cell, lost_reports=0.3)) not in (none, outcome(cell))
    deaf = replace(CELL, policy="round-robin")
    assert outcome(deaf) == outcome(replace(deaf, lost_reports=0.3))


@pytest.mark.deep
def test_routers_that_share_nothing_wait_longer_than_those_that_share() -> None:
    cell = replace(CELL, requests=1000, load=0.75, blocks_per_pod=1500, scrape=1e9)
    one, shared, apart = (
        run(replace(cell, routers=routers, bookings=bookings))  # type: ignore[arg-type]
        for routers, bookings in ((1, "shared"), (3, "shared"), (3, "apart"))
    )
    assert one.ttft_mean_s < 1.1 * shared.ttft_mean_s < 1.1 * apart.ttft_mean_s
    assert outcome(replace(cell, routers=3)) == replace(shared, seconds=0.0, settings={})


def test_a_session_keeps_its_router() -> None:
    cell = replace(CELL, routers=3, bookings="apart", policy="round-robin")
    in_turn, by_session = (
        run(replace(cell, routers_by=by)).pod_prefill_s  # type: ignore[arg-type]
        for by in ("request", "session")
    )
    assert in_turn != by_session


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["serial", "vllm"])
@pytest.mark.parametrize("policy", ["warmpath", "round-robin", "approx"])
def test_requests_of_a_pod_that_dies_are_sent_anew(engine: Any, policy: str) -> None:
    policy = "weighted@record=1@arriving=0" if policy == "approx" else policy
    cell = replace(CELL, engine=engine, policy=policy, routers=2)
    whole, broken = outcome(cell), outcome(replace(cell, outage=20.0))
    assert broken.requests == whole.requests == 300
    assert broken.ttft_mean_s > 0
    assert broken.ttft_p99_s > whole.ttft_p50_s
    assert broken != whole
    assert outcome(replace(cell, outage=20.0)) == broken


def test_a_dead_pod_gets_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, *range(0, 100_000, 500))
    cell = Cell(path, "round-robin", pods=2, blocks_per_pod=300, speed=1.0)
    whole, broken = run(cell), run(replace(cell, outage=1e6))
    first, second = broken.pod_prefill_s
    assert first == pytest.approx(whole.pod_prefill_s[0] / 2, rel=0.05)
    assert first + second == pytest.approx(sum(whole.pod_prefill_s), rel=0.05)


def test_a_pod_that_was_dead_comes_back_cold(tmp_path: Path) -> None:
    path = write(tmp_path, *range(0, 100_000, 500), block=7)
    cell = Cell(path, "round-robin", pods=2, blocks_per_pod=300, speed=1.0)
    for outage, misses in ((0.0, 2), (20.0, 3)):
        found = run(replace(cell, outage=outage)).token_hit_ratio
        assert found == pytest.approx((200 - misses) * 511 / (200 * 512), abs=1e-5)


@pytest.mark.parametrize(
    "args",
    [
        ["--pods", "4x"],
        ["--pods", "4,2x1"],
        ["--pods", "0x1,2x2"],
        ["--queue", "maybe"],
        ["--speed", "fast"],
    ],
)
def test_words_that_are_no_values_are_refused(args: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--trace", str(TRACE), *args])
