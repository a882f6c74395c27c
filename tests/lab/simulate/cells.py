"""Traces, and cells that are run on them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.command import main
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.run import run
from warmpath.lab.simworker.latency import LatencyModel, StepWork


def write(tmp_path: Path, *lines: tuple[int, int, int, Sequence[int]]) -> Path:
    """Write a trace of milliseconds, input and output tokens, and blocks."""
    path = tmp_path / "trace.jsonl"
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text(
        "".join(
            json.dumps(dict(zip(names, [*one[:3], list(one[3])], strict=True))) + "\n"
            for one in lines
        )
    )
    return path


def prefill(new: int, before: int = 0) -> float:
    return LatencyModel().step(StepWork([(new, before)]))


def outcome(cell: Cell) -> Figures:
    return replace(run(cell), seconds=0.0, settings={}, policy="")


def simulate(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    status = main(["--trace", str(CHATS), "--requests", "60", "--processes", "1", "--json", *args])
    assert status == 0
    return json.loads(capsys.readouterr().out)
