"""`python -m bench pick` and `python -m bench policy`."""

import json

import pytest

from bench import __main__ as command
from bench.speed import policy_bars
from router.commands.simulate.study import BEST_PUBLISHED, PUBLISHED

pytestmark = pytest.mark.deep


def test_what_a_pick_costs_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["pick", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in figures] == ["us"] * 4 + ["ms"]
    assert all(figure["ratio"] > 0 for figure in figures)


def test_how_long_requests_wait_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(policy_bars, "QUICK_REQUESTS", 80)
    assert command.main(["policy", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in figures] == ["s"] * 3 + ["%"] * 2 + ["s"]
    assert [figure["goal"] for figure in figures] == [0.8, 0.88, 1.08, 0.92, 0.88, 0.88]
    single, best, worst = (figure["ratio"] for figure in figures[:3])
    # No other is better than the best of each cell, and no mean worse than the worst.
    assert single <= best <= worst


def test_the_peers_are_published() -> None:
    assert BEST_PUBLISHED in policy_bars.PEERS
    assert set(policy_bars.PEERS) <= set(PUBLISHED.values())
