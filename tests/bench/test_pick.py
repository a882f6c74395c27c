"""`warmpath bench pick`."""

import json

import pytest

from bench import benchmarks, pick
from bench.study import BEST_PUBLISHED, PUBLISHED


def test_what_a_pick_costs_and_how_long_requests_wait_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pick, "QUICK_REQUESTS", 80)
    assert benchmarks.main(["pick", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in figures] == ["us"] * 4 + ["s"] * 3 + ["%"] * 2 + ["s"]
    assert all(figure["ratio"] > 0 for figure in figures)
    assert [figure["goal"] for figure in figures[4:]] == [0.8, 0.88, 1.08, 0.92, 0.88, 0.88]
    single, best, worst = (figure["ratio"] for figure in figures[4:7])
    # No other is better than the best of each cell, and no mean worse than the worst.
    assert single <= best <= worst


def test_its_peers_are_published() -> None:
    assert BEST_PUBLISHED in pick.PEERS
    assert set(pick.PEERS) <= set(PUBLISHED.values())
