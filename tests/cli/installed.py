"""The commands as `pyproject.toml` declares them, whatever is installed."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from warmpath.cli.main import GROUP

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def commands() -> list[EntryPoint]:
    declared = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][GROUP]
    return [EntryPoint(name, value, GROUP) for name, value in declared.items()]
