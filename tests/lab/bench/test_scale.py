"""`python -m warmpath.lab.bench scale`."""

import json
import shutil

import pytest

from warmpath.lab.bench import __main__ as command
from warmpath.lab.bench.scale import calls


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_what_routers_and_redis_cost_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["scale", "--quick", "--json"]) == 0
    figures = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    for tokens in calls.LENGTHS:
        for pace in calls.PACES:
            assert figures[calls.name_of(tokens, pace)]["value"] > 0
    assert {one["unit"] for one in figures.values()} <= {"s", "MB", "kB", ""}
    for beginning in ("memory: ", "Redis: ", "router: "):
        assert any(name.startswith(beginning) for name in figures)
