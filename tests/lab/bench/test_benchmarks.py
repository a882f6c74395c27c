"""Each benchmark runs on a small fleet and prints its figures, with the peer or without it."""

import json
import shutil

import pytest

from warmpath.lab.bench import __main__ as command

pytestmark = pytest.mark.deep


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_score_and_the_way_from_text_are_measured_over_grpc(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["score", "tokenize", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert len(figures) == 24
    assert all(figure["value"] > 0 for figure in figures)


def test_every_other_benchmark_runs_with_or_without_the_peer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["index", "memory", "ingest", "recover", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert len(figures) == 35
    assert all(figure["value"] > 0 for figure in figures)
    for figure in figures:
        assert (figure["ratio"] is None) == (figure["peer"] is None)
        assert (figure["met"] is None) == (figure["ratio"] is None or figure["goal"] is None)


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(SystemExit):
        command.main(["speed"])
