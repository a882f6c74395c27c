"""A wheel that is built twice is the same, byte by byte."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000
FOLDERS = (
    "cli", "h2grpc", "indexer", "lab", "prefixstore", "process", "proto", "publisher", "router",
    "scorer", "warmpath",
)  # fmt: skip

pytestmark = pytest.mark.deep


def built(folder: Path, packages: list[str], **environment: str) -> Path:
    """Copy the sources into a folder, in the order of `packages`, and build the wheel there."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in packages:
        shutil.copytree(
            ROOT / name, sources / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
            "--disable-pip-version-check", "--wheel-dir", str(folder), str(sources),
        ],
        check=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)} | environment,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    return wheel


def test_a_wheel_that_is_built_twice_has_the_same_bytes(tmp_path: Path) -> None:
    first = built(tmp_path / "first", [*FOLDERS], PYTHONHASHSEED="1", TZ="UTC")
    second = built(
        tmp_path / "second" / "deeper", [*FOLDERS[::-1]], PYTHONHASHSEED="2", TZ="Asia/Tokyo"
    )
    assert first.name == second.name
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (first, second)]
    assert digests[0] == digests[1]
    with zipfile.ZipFile(first) as wheel:
        times = {member.date_time for member in wheel.infolist()}
        packages = {member.filename.partition("/")[0] for member in wheel.infolist()}
    assert len(times) == 1, "every file has the time of SOURCE_DATE_EPOCH"
    assert {name for name in packages if "." not in name} == {"warmpath"}
