import json

import pytest

from bench import benchmarks


def test_every_benchmark_runs_and_prints_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert len(figures) == 10
    assert all(figure["value"] > 0 and figure["ratio"] > 0 for figure in figures)


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(SystemExit):
        benchmarks.main(["speed"])
