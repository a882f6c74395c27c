"""Unlike pods, late reports, several routers, a pod that dies, traffic as it was, and picks that wait."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simulate.cells import outcome, prefill, simulate, write
from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.command import main
from warmpath.lab.simulate.run import run
from warmpath.lab.simulate.traffic.generated import Generated

CELL = Cell(CHATS, "warmpath", pods=4, blocks_per_pod=400, load=0.6, requests=300)


def test_traffic_comes_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, *((at, 512, 1, [at]) for at in (0, 4000, 10_000)))
    found = run(Cell(path, "warmpath", pods=2, blocks_per_pod=10, speed=1.0))
    assert found.speed == 1.0
    assert found.makespan_s == pytest.approx(10 + prefill(512), abs=0.01)
    assert found.load == pytest.approx(3 * prefill(512) / (2 * 10), abs=1e-4)
    # The same load has the same speed.
    back = run(Cell(path, "warmpath", pods=2, blocks_per_pod=10, load=found.load))
    assert back.speed == pytest.approx(1.0, rel=0.01)


def test_unlike_pods_take_their_times(tmp_path: Path) -> None:
    path = write(tmp_path, *((at, 512, 1, [at]) for at in range(0, 100_000, 10_000)))
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
    assert outcome(replace(cell, routers=3)) == replace(shared, seconds=0.0, settings={}, policy="")


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


def test_an_engine_that_decodes_is_not_stuck_though_prompts_wait_for_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = [(at, 512, 1, [at]) for at in range(0, 20_000, 1000)]
    # Each answer fills half of a pod's memory for some minutes.
    long = [(20_000 + at, 512, 10_000, [20_000 + at]) for at in (0, 1, 2, 3, 4, 5)]
    later = [(at, 512, 1, [at]) for at in range(30_000, 60_000, 1000)]
    cell = Cell(write(tmp_path, *short, *long, *later), "warmpath", 2, 42, speed=1.0)
    assert run(cell).ttft_p99_s > 100
    assert "answered nothing" not in caplog.text


def test_a_dead_pod_gets_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, *((at, 512, 1, [at]) for at in range(0, 100_000, 500)))
    cell = Cell(path, "round-robin", pods=2, blocks_per_pod=300, speed=1.0)
    whole, broken = run(cell), run(replace(cell, outage=1e6))
    first, second = broken.pod_prefill_s
    assert first == pytest.approx(whole.pod_prefill_s[0] / 2, rel=0.05)
    assert first + second == pytest.approx(sum(whole.pod_prefill_s), rel=0.05)


def test_a_pod_that_was_dead_comes_back_cold(tmp_path: Path) -> None:
    path = write(tmp_path, *((at, 512, 1, [7]) for at in range(0, 100_000, 500)))
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
        main(["--trace", str(CHATS), *args])


QUEUED = Cell(CHATS, "warmpath", pods=4, blocks_per_pod=500, load=0.7, requests=300, queue=True)


def cold(*requests: tuple[int, int]) -> Iterator[tuple[int, int, int, range]]:
    """Yield lines of cold prompts, given their milliseconds and blocks."""
    for number, (at, blocks) in enumerate(requests):
        yield at, 512 * blocks, 1, range(1000 * number, 1000 * number + blocks)


def test_a_short_prompt_goes_before_a_long_one_that_waits(tmp_path: Path) -> None:
    # The first ones tell that first tokens are reported; then a long one is under way.
    known = [(1000 * number, 1) for number in range(20)]
    path = write(tmp_path, *cold(*known, (30_000, 80), (30_100, 80), (30_200, 1)))
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
    path = write(tmp_path, *cold((0, 80), (100, 80), (200, 1)))
    cell = Cell(path, "warmpath", pods=1, blocks_per_pod=500, speed=1.0, engine="vllm")
    in_turn, by_priority = run(cell), run(replace(cell, engine_priority=True))
    long = prefill(80 * 512)
    assert in_turn.ttft_curve_s[100] == pytest.approx(2 * long - 0.2, rel=0.1)
    assert by_priority.ttft_curve_s[0] == pytest.approx(long - 0.2, rel=0.1)
    assert by_priority.makespan_s == pytest.approx(in_turn.makespan_s, rel=0.01)
    assert by_priority.policy == "warmpath, by engine priority"


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["serial", "vllm"])
def test_a_queued_cell_has_the_same_figures(engine: Any) -> None:
    cell = replace(QUEUED, engine=engine, requests=150)
    assert outcome(cell) == outcome(cell)
    assert outcome(cell) != outcome(replace(cell, queue=False))


def test_an_idle_fleet_has_nothing_to_wait_for() -> None:
    cell = replace(QUEUED, load=0.05)
    queued, at_once = run(cell), run(replace(cell, queue=False))
    for figure in ("ttft_p50_s", "ttft_p90_s", "ttft_mean_s"):
        assert getattr(queued, figure) == pytest.approx(getattr(at_once, figure), rel=0.03)


def test_nothing_waits_where_first_tokens_are_not_reported() -> None:
    for reports in ("ends", "none"):
        cell = replace(QUEUED, reports=reports, requests=100)
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
    found = run(replace(QUEUED, requests=150, **changed))
    assert found.requests == 150
    assert 0 < found.ttft_p50_s <= found.ttft_p99_s < 600


@pytest.mark.deep
def test_long_prompts_hold_up_fewer() -> None:
    cell = Cell(Generated("reading"), "warmpath", 4, 1500, 0.7, requests=600)
    at_once, queued = run(cell), run(replace(cell, queue=True))
    assert queued.ttft_mean_s < 0.95 * at_once.ttft_mean_s
    assert queued.ttft_p90_s < at_once.ttft_p90_s


def test_a_table_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--trace", str(CHATS), "--requests", "60", "--processes", "1", "--queue", "off,on"]
    assert main([*args, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["warmpath", "warmpath, queued"]
    assert [row["settings"]["queue"] for row in rows] == [False, True]
    assert main(args) == 0
    assert "warmpath, queued" in capsys.readouterr().out
