"""A Docker engine: the one that answers, or one of its own in a folder, ended by its pid and removed."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.manifests import FOLDER

START_SECONDS = 60.0


class NoEngineError(Exception):
    """No engine answers, and none can be started."""


class Docker:
    """Docker's client, and that of compose, beside one engine."""

    def __init__(self, host: str | None) -> None:
        own = os.environ.get("DOCKER") or "/usr/bin/docker"
        self._program = shutil.which(own) or shutil.which("docker")
        self._env = dict(os.environ, DOCKER_BUILDKIT="1")
        if host:
            self._env["DOCKER_HOST"] = host

    def run(self, *words: str | Path, seconds: float = 1200, **options: Any) -> str:
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
            return bool(self._program and self.run("version", "--format", "{{.Server.Version}}"))
        except (OSError, RuntimeError):
            return False


@contextmanager
def engine(folder: Path) -> Iterator[Docker]:
    """Yield the client of an engine; `folder` is one of its own, not on an overlay, and is removed.

    Raises NoEngineError.
    """
    given = Docker(None)
    if given.answers():
        yield given
        return
    daemon = shutil.which("dockerd")
    if daemon is None or os.geteuid() != 0:
        raise NoEngineError(
            "no Docker engine answers, and none can be started: that needs root and Debian's "
            "packages docker.io and debootstrap"
        )
    folder.mkdir(parents=True)
    host = f"unix://{folder}/s"
    words = [daemon, "--data-root", folder / "data", "--exec-root", folder / "exec"]
    words += ["--pidfile", folder / "pid", "--host", host, "--bridge", "none"]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        own = Docker(host)
        end = time.monotonic() + START_SECONDS
        while not own.answers():
            if started.poll() is not None or time.monotonic() > end:
                said = (folder / "log").read_text(errors="replace")[-1500:]
                raise NoEngineError(
                    f"no Docker engine answers, and this one does not start: {said}"
                )
            time.sleep(0.2)
        yield own
    finally:
        started.terminate()
        started.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
