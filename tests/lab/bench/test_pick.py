"""`python -m warmpath.lab.bench pick`."""

import json

import pytest

from warmpath.lab.bench import __main__ as command

pytestmark = pytest.mark.deep


def test_what_a_pick_costs_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["pick", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in figures] == ["us"] * 4 + ["ms"]
    assert all(figure["ratio"] > 0 for figure in figures)
