"""A Docker engine: the one that answers, or one of its own, which ends with this process and leaves nothing behind."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.manifests import FOLDER, ROOT

START_SECONDS = 60.0
MEMORY = Path("/dev/shm")
NEEDED_KB = 8 << 20


class UnavailableError(Exception):
    """What surrounds the tests has no engine, or no images for it."""


class Docker:
    """Docker's client, and that of compose, beside one engine."""

    def __init__(self, host: str | None) -> None:
        own = os.environ.get("DOCKER") or "/usr/bin/docker"
        self._program = shutil.which(own) or shutil.which("docker")
        self._env = dict(os.environ, DOCKER_BUILDKIT="1")
        if host:
            self._env["DOCKER_HOST"] = host

    def run(self, *words: str | Path, seconds: float = 300, **options: Any) -> str:
        """Return what a command of Docker prints; RuntimeError has the end of what it says where it fails."""
        return self._run([str(self._program), *map(str, words)], seconds, options)

    def compose(self, *words: str | Path, seconds: float = 300) -> str:
        return self._run([str(FOLDER / "bin" / "docker-compose"), *map(str, words)], seconds, {})

    def _run(self, words: list[str], seconds: float, options: dict[str, Any]) -> str:
        ended = subprocess.run(
            words, env=self._env, capture_output=True, timeout=seconds, check=False, **options
        )
        said = ended.stdout.decode(errors="replace")
        if ended.returncode:
            raise RuntimeError(f"{words}: {(said + ended.stderr.decode(errors='replace'))[-3000:]}")
        return said.strip()

    def answers(self) -> bool:
        try:
            words = ("version", "--format", "{{.Server.Version}}")
            return bool(self._program and self.run(*words, seconds=20))
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            return False


def roomy_folder() -> Path:
    """Return where an engine can have its files: in memory where there is room, as disks are minutes slower, or in `out`."""
    found = re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    if found and MEMORY.is_dir():
        of = os.statvfs(MEMORY)
        least = min(int(found[1]), of.f_bavail * of.f_frsize >> 10)
        if least >= NEEDED_KB and not of.f_flag & (os.ST_NOEXEC | os.ST_NODEV):
            return MEMORY
    return ROOT / "out"


@contextmanager
def engine(folder: Path, bridge: str) -> Iterator[Docker]:
    """Yield the client of an engine. One of its own has its files in `folder`, which goes with it, and ends `bridge`.

    Raises UnavailableError.
    """
    given = Docker(None)
    if given.answers():
        yield given
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        raise UnavailableError(
            "no Docker engine answers, and none can be started: that needs root and Debian's "
            "packages docker.io and debootstrap"
        )
    words = [sys.executable, "-m", "tests.compose.keep", str(folder), bridge]
    # A session of its own: whatever ends this process and its group leaves it to end the engine.
    keeper = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    try:
        own = Docker(f"unix://{folder}/s")
        end = time.monotonic() + START_SECONDS
        while not own.answers():
            if keeper.poll() is not None or time.monotonic() > end:
                said = keeper.communicate()[0].decode(errors="replace").strip().rpartition("\n")[2]
                raise UnavailableError(
                    f"no Docker engine answers, and dockerd does not start: {said}"
                )
            time.sleep(0.2)
        yield own
    finally:
        assert keeper.stdin
        assert keeper.stdout
        keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait()
