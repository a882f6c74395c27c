"""The options of `warmpath fleet`."""

from pathlib import Path

import pytest

from warmpath.lab.fleet.command import MOST, main


@pytest.mark.parametrize(("name", "most"), MOST.items())
@pytest.mark.parametrize("beyond", [0, 1])
def test_numbers_that_no_machine_should_start_are_refused(
    tmp_path: Path, name: str, most: int, beyond: int, capsys: pytest.CaptureFixture[str]
) -> None:
    number = most + beyond if beyond else 0
    out = tmp_path / "out"
    assert main([f"--{name}={number}", f"--out={out}"]) == 2
    assert f"fleet: --{name} is {number}, not 1 to {most}" in capsys.readouterr().err
    assert not out.exists()
