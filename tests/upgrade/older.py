"""The sources of the last release, and its processes beside those of this version."""

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from warmpath.cli.child import START_SECONDS, ChildError
from warmpath.lab.local.cluster import Process

ROOT = Path(__file__).parents[2]
OLDER = "WARMPATH_OLDER"
"""The environment variable with a commit or tag to take for the last release."""
COMPILES = "from warmpath.indexer.embedded import warm_up_compiled; warm_up_compiled()"
"""Takes minutes; then the older version's processes start at once."""


def git(*words: str) -> bytes:
    """Return what git prints, nothing where it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def unpacked(folder: Path) -> Path:
    """Return a folder with the sources of the last release; skips the test where there are none."""
    tags = git("tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD").split()
    older = os.environ.get(OLDER) or (tags[0].decode() if tags else "")
    if not older:
        pytest.skip(f"this clone has no tag of a release; {OLDER} names a commit to take for one")
    packed = git("archive", "--format=tar", older)
    assert packed, f"git has no {older}"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    where = f"{COMPILES}; "
    where += "from warmpath import publisher, router; print(publisher.__file__, router.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", where],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [Path(one).parents[2] for one in told.stdout.split()] == [folder, folder]
    return folder


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder)}


class Older(Process):
    """A process of the last release."""

    def __init__(self, name: str, log: Path, sources: Path) -> None:
        super().__init__(name, log)
        self._sources = sources

    async def start(self, *args: str) -> str:
        """Start `python -m ARGS` and return the first line it prints."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *args,
                cwd=self._sources,
                env=_environment(self._sources),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise ChildError(f"{self.name} ended while starting: {self._log.read_text()[-2000:]}")
        return line.decode()
