"""`warmpath version`, and that the version stands in one place."""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Output
from warmpath.cli import version

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
REPEATED = {
    "deploy/helm/warmpath/Chart.yaml": r"^(?:version|appVersion): (.+)$",
    "deploy/kustomize/base/kustomization.yaml": r"newTag: (.+)$",
    "deploy/kustomize/base/deployment.yaml": r"image: warmpath-router:(.+)$",
    "deploy/examples/vllm.yaml": r"image: warmpath-publisher:(.+)$",
}
"""What cannot read pyproject.toml, and how the version stands there."""


def said(output: Output) -> dict[str, object]:
    assert version.main(["--json"]) == 0
    found: dict[str, object] = output.json()
    return found


def test_everything_that_outlives_a_process_has_its_version(output: Output) -> None:
    found = said(output)
    assert found["shared_index"] == {"schema": 1, "buckets": 64, "segment": 64}
    assert found["contracts"] == ["warmpath.v1", "warmpath.watch.v1", "indexer.v1"]
    assert version.main([]) == 0
    lines = output.out().splitlines()
    assert lines[0].startswith(f"warmpath {found['version']}, commit ")
    assert "shared index in Redis: schema 1, buckets 64, segment 64" in lines
    assert f"state file: {found['state_file']}" in lines


def test_the_commit_of_an_image_or_of_an_installation_from_git_is_shown(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = json.dumps({"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}})
    distribution = SimpleNamespace(read_text=lambda _: noted)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: distribution)
    monkeypatch.delenv(version.REVISION, raising=False)
    assert said(output)["commit"] == "c0ffee"
    monkeypatch.setenv(version.REVISION, "abcd")
    assert said(output)["commit"] == "abcd"


def test_a_commit_that_nobody_knows_is_said_to_be_so(
    output: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(version, "__file__", str(tmp_path / "a" / "b" / "version.py"))
    monkeypatch.setattr(
        "importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: None)
    )
    monkeypatch.delenv(version.REVISION, raising=False)
    assert version.main([]) == 0
    assert "commit not known" in output.out()


@pytest.mark.parametrize("path", REPEATED)
def test_a_file_that_repeats_the_version_has_the_same(path: str) -> None:
    found = re.findall(REPEATED[path], (ROOT / path).read_text(), re.MULTILINE)
    assert {*found} == {VERSION}
