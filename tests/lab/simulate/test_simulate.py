"""`warmpath simulate`: the router's own decisions on recorded traffic.

One file, since all tests run one command.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.examples import examples
from tests.lab.simulate.cells import outcome, prefill, simulate, write
from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.command import main
from warmpath.lab.simulate.options import cells, new_parser
from warmpath.lab.simulate.run import pooled, run, spread
from warmpath.lab.simulate.study import (
    ALL,
    BEST_PUBLISHED,
    OWN,
    POOLED,
    PUBLISHED,
    variant,
    variants,
)
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simworker.latency import LatencyModel

CELL = Cell(CHATS, "warmpath", pods=4, blocks_per_pod=400, load=0.6, requests=200)

KEYS = {
    "policy", "pods", "blocks_per_pod", "load", "engine", "seed", "requests", "token_hit_ratio",
    "ceiling", "hit_share", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s",
    "tpot_p90_ms", "e2e_p90_s", "output_tokens_per_s", "imbalance", "utilisation", "arrivals_s", "makespan_s",
    "speed", "seconds",
}  # fmt: skip


def test_a_schedule_is_what_it_is_by_hand(tmp_path: Path) -> None:
    path = write(tmp_path, (0, 1024, 1, [1, 2]), (10_000, 1024, 1, [1, 2]))
    found = run(Cell(path, "warmpath", pods=1, blocks_per_pod=100, load=0.5))
    work = prefill(1024) + prefill(1, 1023)
    assert found.token_hit_ratio == found.ceiling == round(1023 / 2048, 5)
    assert found.hit_share == 1.0
    assert found.speed == pytest.approx(0.5 * 10 / work, abs=1e-4)
    assert found.ttft_curve_s[0] == pytest.approx(prefill(1, 1023), abs=1e-5)
    assert found.ttft_p99_s == pytest.approx(prefill(1024), abs=1e-5)
    assert found.ttft_mean_s == pytest.approx(work / 2, abs=1e-4)
    # The second comes when half of the time is over, and finds nobody there.
    assert found.makespan_s == pytest.approx(2 * work + prefill(1, 1023), abs=0.01)
    assert found.utilisation == pytest.approx(work / (2 * work + prefill(1, 1023)), abs=1e-4)
    assert found.imbalance == 1.0


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["serial", "vllm"])
def test_the_same_cell_has_the_same_figures(engine: Any) -> None:
    cell = replace(CELL, engine=engine)
    first = outcome(cell)
    assert outcome(cell) == first
    assert first.requests == 200
    assert 0 < first.token_hit_ratio <= first.ceiling < 1
    assert outcome(replace(cell, policy="random", seed=2)) != outcome(
        replace(cell, policy="random")
    )


@pytest.mark.parametrize("engine", ["serial", pytest.param("vllm", marks=pytest.mark.deep)])
def test_warmpath_finds_more_and_waits_less_than_round_robin(engine: Any) -> None:
    cell = Cell(CHATS, "warmpath", pods=4, blocks_per_pod=1500, load=0.6, engine=engine)
    ours, theirs = run(cell), run(replace(cell, policy="round-robin"))
    assert ours.token_hit_ratio > 1.5 * theirs.token_hit_ratio
    assert ours.ttft_mean_s < theirs.ttft_mean_s
    assert ours.ttft_p90_s < theirs.ttft_p90_s
    assert ours.ceiling == theirs.ceiling


@pytest.mark.deep
@pytest.mark.random
@pytest.mark.parametrize("spec", ALL)
def test_every_variant_of_the_study_runs(spec: str) -> None:
    requests = examples(200, desk=60)
    found = run(replace(CELL, policy=spec, requests=requests))
    assert found.requests == requests
    assert found.ttft_p50_s > 0
    # The bound's cache is all pods' together and takes prompts that are being computed for computed.
    assert found.hit_share <= (1.1 if spec == POOLED else 1.001)


def test_what_was_just_sent_counts_only_where_it_is_asked_to(tmp_path: Path) -> None:
    lines = [(10 * number, 4096, 1, list(range(8))) for number in range(8)]
    path = write(tmp_path, *lines, (5000, 512, 1, [99]))
    cell = Cell(path, "longest-prefix", pods=4, blocks_per_pod=100, load=0.5)
    together, apart = run(cell), run(replace(cell, policy="longest-prefix@arriving=0"))
    assert together.token_hit_ratio > apart.token_hit_ratio


def test_events_that_come_late_or_never_cost_hits() -> None:
    cell = replace(CELL, policy="warmpath@arriving=0", requests=0)
    on_time, late, never = (
        run(one).token_hit_ratio
        for one in (cell, replace(cell, event_delay=60.0), replace(cell, no_events_share=1.0))
    )
    assert late < on_time
    assert never != on_time


def test_a_router_without_events_goes_by_what_it_sent() -> None:
    cell = replace(CELL, requests=0, no_events_share=1.0)
    assert run(cell).token_hit_ratio > 1.2 * run(replace(cell, policy="random")).token_hit_ratio


def test_wrong_costs_are_the_routers_alone() -> None:
    # Without first tokens it never finds out.
    cell = replace(CELL, reports="none")
    right, wrong = run(cell), run(replace(cell, estimate_factor=3.0))
    assert (right.ceiling, right.speed) == (wrong.ceiling, wrong.speed)
    assert right.ttft_mean_s != wrong.ttft_mean_s
    blind = replace(CELL, policy="round-robin")
    assert run(blind).ttft_mean_s == run(replace(blind, estimate_factor=3.0)).ttft_mean_s


def test_bursts_stay_as_they_were_recorded_where_that_is_asked(tmp_path: Path) -> None:
    lines = [(0, 512, 1, [number]) for number in range(4)]
    path = write(tmp_path, *lines, (9000, 512, 1, [9]))
    cell = Cell(path, "round-robin", pods=1, blocks_per_pod=100, load=0.1)
    assert run(cell).ttft_p99_s == pytest.approx(prefill(512), abs=1e-5)
    # Each has waited for those before it; the last of those still counts as decoding.
    raw = run(replace(cell, raw_bursts=True))
    assert raw.ttft_p99_s == pytest.approx(4 * prefill(512), rel=0.01)


def test_what_fits_into_no_pod_is_left_out_and_said(tmp_path: Path) -> None:
    path = write(
        tmp_path, (0, 512, 1, [1]), (1000, 5120, 1, list(range(10, 20))), (2000, 512, 1, [2])
    )
    for engine in ("serial", "vllm"):
        cell = Cell(path, "warmpath", pods=2, blocks_per_pod=4, load=0.5, engine=engine)  # type: ignore[arg-type]
        found = run(cell)
        assert (found.requests, found.refused) == (2, 1)
    with pytest.raises(ValueError, match="--blocks-per-pod is 1: no request of the trace fits"):
        run(replace(cell, blocks_per_pod=1))


@pytest.mark.parametrize(("bad", "shown", "more"), [(1, 1, ""), (5, 3, "and 2 more")])
def test_lines_that_were_left_out_are_told_beside_the_figures(
    bad: int, shown: int, more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, *[(1000 * number, 512, 1, [number]) for number in range(100)])
    with path.open("a") as file:
        file.write("{\n" * bad)
    args = ["--trace", str(path), "--pods", "1", "--blocks-per-pod", "9", "--json"]
    assert main(args) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["bad_lines"] == bad
    assert f"left out, since they are wrong: {bad}\n" in told.err
    assert f"{path}: line 101: " in told.err
    assert told.err.count(f"{path}: line ") == shown
    assert told.err.endswith(f"{path}: {more}\n") is bool(more)


def test_requests_of_one_stamp_are_spread_up_to_the_next() -> None:
    lines = [LoggedRequest(stamp, 512, 1, ()) for stamp in (0, 0, 0, 3, 9, 9)]
    assert [one.at for one in spread(lines)] == [0, 1, 2, 3, 9, 9.5]


def test_the_ceiling_is_one_cache_of_all_pods_size() -> None:
    requests = [
        LoggedRequest(0.0, 1024, 1, (1, 2)),
        LoggedRequest(0.0, 1000, 1, (1, 3)),
        LoggedRequest(0.0, 512, 1, (4,)),
        LoggedRequest(0.0, 1024, 1, (1, 2)),
    ]
    hit, work = pooled(requests, 3, 512, LatencyModel())
    # The tail of the oldest prompt is gone by then.
    assert hit == (512 + 512) / 3560
    assert work == pytest.approx(
        prefill(1024) + prefill(488, 512) + prefill(512) + prefill(512, 512)
    )
    assert pooled(requests, 4, 512, LatencyModel())[0] == (512 + 1023) / 3560


def test_json_is_one_object_or_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    one = simulate(capsys, "--blocks-per-pod", "300")
    assert one.keys() >= KEYS
    assert (one["policy"], one["pods"], one["blocks_per_pod"]) == ("warmpath", 8, 300)
    many = simulate(
        capsys, "--pods", "2,3", "--load", "0.3,0.5", "--policy", f"warmpath,{BEST_PUBLISHED}"
    )
    assert [(row["pods"], row["load"], row["policy"]) for row in many] == [
        (pods, load, policy)
        for pods in (2, 3)
        for load in (0.3, 0.5)
        for policy in ("warmpath", BEST_PUBLISHED)
    ]


@pytest.mark.deep
def test_several_processes_have_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--policy", "warmpath,least-load", "--seed", "1,2")
    first, second = (
        [{**row, "seconds": 0} for row in simulate(capsys, *args, "--processes", processes)]
        for processes in ("1", "2")
    )
    assert first == second


def test_the_studys_matrix_is_twelve_cells(capsys: pytest.CaptureFixture[str]) -> None:
    rows = simulate(capsys, "--matrix", "--policy", "round-robin")
    cells = {(row["pods"], row["blocks_per_pod"], row["load"]) for row in rows}
    assert len(rows) == len(cells) == 12


@pytest.mark.parametrize(("last_ms", "is_crowd"), [(1000, True), (900_000, False)])
def test_requests_that_come_faster_than_answers_end_are_called_a_crowd(
    last_ms: int, is_crowd: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, (0, 512, 1000, [1]), (last_ms, 512, 1000, [2]))
    assert main(["--trace", str(path), "--speed", "1", "--pods", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("The 2 requests come within 1 s" in shown) is is_crowd
    assert ("that is a crowd" in shown) is is_crowd


def test_tables_show_policies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--trace", str(CHATS), "--requests", "60", "--processes", "1", "--pods", "2,3"]
    assert main([*args, "--policy", "own_mix,llmd-token,pooled"]) == 0
    shown = capsys.readouterr().out
    assert "2 pods x 1,500 blocks, load 0.5" in shown
    assert "all cells" in shown
    assert "pooled (bound)" in shown
    assert "study-mix = own_mix" in shown


def test_the_report_is_one_page_and_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    rows = simulate(
        capsys, "--pods", "2,3", "--policy", "warmpath,llmd-token", "--report", str(folder)
    )
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 1 + 2 * 3
    assert "ceiling: one cache of all pods" in page
    assert not any(word in page for word in ("<link", "<img", "src=", 'href="http'))
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert lines == rows


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--pods", "0"], "--pods is 0, less than 1"),
        (["--blocks-per-pod", "0"], "--blocks-per-pod is 0, less than 1"),
        (["--load", "0"], "--load is 0.0, not above 0 and at most 1000"),
        (["--load", "nan"], "--load is nan"),
        (["--requests", "-1"], "--requests is -1, less than 0"),
        (["--event-delay", "-1"], "--event-delay is -1.0, less than 0"),
        (["--no-events-share", "2"], "--no-events-share is 2.0, not 0 to 1"),
        (["--estimate-factor", "0"], "--estimate-factor is 0.0, not above 0"),
        (["--processes", "0"], "--processes is 0, less than 1"),
        (["--policy", "nobody"], "no policy 'nobody'; known: .*warmpath"),
        (["--policy", "warmpath@x=1"], "policy warmpath has no option 'x'"),
        (["--policy", "warmpath@g"], "'g' is not option=NUMBER"),
        (["--policy", "warmpath@g=much"], "'g=much' is not option=NUMBER"),
        (["--policy", "warmpath@arriving=2"], "arriving is 2, not 0 or 1"),
        (["--policy", "pooled@g=1"], "pooled takes no options"),
        (["--policy", "pooled", "--engine", "vllm"], "pooled: only engine serial"),
        (["--routers-by", "session"], "--routers-by: one router has every session anyway"),
        (["--trace", "/nowhere"], "--trace: there is no file /nowhere"),
        (["--trace", "/tmp"], "--trace: /tmp is a folder, not a file"),
        (["--trace", "/dev/null"], "--trace: /dev/null is a pipe or a device"),
        (["--traffic-seed", "1"], "--traffic-seed: does not go with --trace"),
        (["--report", "/dev/null/out"], "/dev/null/out: a part of its path is not a folder"),
        (["--pods", "8,1025"], "--pods is 1025, more than 1024"),
        (["--matrix", "--pods", "8"], "--pods and --matrix, which has its own: give only one"),
        (["--matrix", "--blocks-per-pod", "9"], "--blocks-per-pod and --matrix"),
        (["--matrix", "--load", "0.5"], "--load and --matrix"),
        (["--speed", "0"], "--speed is 0.0, not above 0"),
        (["--speed", "1", "--load", "0.5"], "--load and --speed"),
        (["--speed", "1", "--matrix"], "--speed and --matrix"),
        (["--speed", "1e7"], r"--speed is 10000000.0, more than 1e\+06"),
        (["--pods", "4x0,1x1"], "--pods: a factor is 0.0, not above 0"),
        (["--pods", "1000x1,1000x2"], "--pods is 2000, more than 1024"),
        (["--routers", "0"], "--routers is 0, less than 1"),
        (["--routers", "17"], "--routers is 17, more than 16"),
        (["--report-delay", "-1"], "--report-delay is -1.0, less than 0"),
        (["--report-delay", "inf"], r"--report-delay is inf, more than 1e\+06"),
        (["--report-delay", "3", "--reports", "none"], "--report-delay: with --reports none there"),
        (
            ["--lost-reports", "0.1", "--reports", "none"],
            "--lost-reports: with --reports none there",
        ),
        (["--lost-reports", "1.5"], "--lost-reports is 1.5, not 0 to 1"),
        (["--outage", "-1"], "--outage is -1.0, less than 0"),
        (["--outage", "5", "--pods", "1"], "--outage: there is no second pod"),
        (["--outage", "5", "--policy", "pooled"], "pooled: --outage: a shared cache"),
        (["--scale", "busy"], "--scale is 'busy', neither off, needed nor running:N"),
        (["--scale", "running:0"], "--scale is 'running:0'"),
        (["--scale", "needed", "--routers", "2"], "--scale: does not go with --routers"),
        (["--scale", "needed", "--policy", "pooled"], "pooled: --scale: a shared cache"),
        (["--sessions", "2", "--wave", "0.5"], "--wave: the requests of a closed loop"),
        (["--wave", "1.5"], "--wave is 1.5, more than 1"),
        (["--engine-priority"], "--engine-priority: only --engine vllm"),
    ],
)
def test_options_without_sense_are_refused(
    args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--trace", str(CHATS), *args]) == 2
    told = capsys.readouterr().err
    assert told.startswith("warmpath simulate: ")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(told)


def test_a_file_that_this_process_has_open_is_the_same_file_in_others() -> None:
    with CHATS.open("rb") as file:
        args = new_parser(None).parse_args(["--trace", f"/dev/fd/{file.fileno()}"])
        [cell] = cells(args)
    assert cell.trace == CHATS.resolve()


@pytest.mark.parametrize("option", ["--trace", "--report"])
def test_an_empty_path_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--trace", str(CHATS), option, ""])
    assert f"{option}: is empty" in capsys.readouterr().err


def test_what_is_run_where_nothing_is_said_is_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = simulate(capsys)
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for name in ("pods", "blocks_per_pod", "load"):
        assert f"; {one[name]:g} by default" in " ".join(told.split())


def test_requests_that_come_all_at_once_have_no_speed(tmp_path: Path) -> None:
    path = write(tmp_path, (0, 512, 1, [1]))
    with pytest.raises(ValueError, match=r"trace.jsonl: timestamp: it is the same in all"):
        run(Cell(path, "warmpath", pods=1, blocks_per_pod=100, load=0.5))


def test_the_studys_names_are_taken_too() -> None:
    assert len(PUBLISHED) == 23
    assert variants("llmd_token+spec,own_mix") == variants(f"{BEST_PUBLISHED},{OWN['own_mix']}")
    assert [one.spec for one in variants("published")] == [*PUBLISHED.values()]
    assert [one.spec for one in variants("all,warmpath")] == [*ALL]
    assert variant("warmpath@g=0.3@arriving=0").options == {"g": 0.3}


def test_a_policys_own_name_is_not_taken_for_the_studys() -> None:
    [plain] = variants("lmetric")
    assert (plain.policy, plain.counts_arriving) == ("lmetric", True)
    [studys] = variants("approx")
    assert (studys.policy, studys.keeps_record) == ("weighted", True)
