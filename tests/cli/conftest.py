"""What commands print."""

import json
from typing import Any

import pytest


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
