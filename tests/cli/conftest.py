"""What commands print, and the commands as `pyproject.toml` declares them, whatever is installed."""

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from warmpath.cli.main import GROUP


class Output:
    """Gives what was printed since the last time that it was asked."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.both = capsys.readouterr

    def out(self) -> str:
        return self.both().out

    def err(self) -> str:
        return self.both().err

    def words(self) -> str:
        """Return standard output, however it was broken into lines."""
        return " ".join(self.out().split())

    def json(self) -> Any:
        return json.loads(self.out())


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Return what gives the output of a command that a test runs in its own process."""
    return Output(capsys)


PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def commands() -> list[EntryPoint]:
    declared = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][GROUP]
    return [EntryPoint(name, value, GROUP) for name, value in declared.items()]
