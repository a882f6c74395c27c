"""A real Redis or Valkey server, from the binary in a Python package for tests."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.service import Service
from warmpath.lab.local.ports import HeldPorts
from warmpath.lab.local.redis_cluster import BUS
from warmpath.lab.local.redis_server import find_server

Binary = Literal["redis", "valkey"]
"""Redis 6.2 or Valkey 9."""
START_SECONDS = 60.0
FIRST_PAUSE = 0.002
LAST_PAUSE = 0.05
"""Seconds between two looks: a server starts in 10 ms, a cluster in 2 s."""


def wait_for(condition: Callable[[], Any], seconds: float = START_SECONDS, what: str = "") -> Any:
    """Return the condition's value once it is true; errors of Redis count as false."""
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE
    problem: object = ""
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except redis.RedisError as error:
            problem = error
        time.sleep(pause)
        pause = min(LAST_PAUSE, 1.5 * pause)
    raise TimeoutError(f"{what or condition} did not come about in {seconds} s; {problem}")


class RedisServer(Service):
    """One server on loopback, with a folder of its own. Nothing is saved unless asked for.

    `config` holds directives of redis.conf: `maxmemory="4mb"`, `appendonly="yes"`; `users` the lines of
    an ACL file; `sentinel` the lines of a sentinel's file. `environment` is added to this process's own.
    """

    def __init__(
        self,
        binary: Binary = "redis",
        *,
        users: tuple[str, ...] = (),
        sentinel: str = "",
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        **config: str | int,
    ) -> None:
        self.name = binary
        self.folder = Path(tempfile.mkdtemp(prefix="warmpath-redis-"))
        self.port = port
        """Reserved from the start to `close`, so that a restart finds it free; a given port is not."""
        self._held = HeldPorts()
        self._environment = environment or {}
        self._config = {"save": "", "appendonly": "no"} | config
        self._users = users
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self.password = ""
        """The default user's password, for `client`."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def client(self, **options: Any) -> "redis.Redis[bytes]":
        """Return a plain client, to look at the server from outside.

        It tries once: with its own retries redis-py would take 5 s to raise the error.
        """
        options.setdefault("password", self.password or None)
        return redis.Redis(
            host="127.0.0.1", port=self.port, protocol=2, socket_timeout=60,
            retry=Retry(NoBackoff(), 0), **options,
        )  # fmt: skip

    def ask(self, *words: str | bytes | int) -> Any:
        """Return the reply to one command over a connection of its own."""
        with self.client() as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def raw(self, *words: str | bytes | int) -> Any:
        """Return the reply to one command as the server sent it; redis-py parses some replies."""
        with self.client() as client:
            connection = client.connection_pool.get_connection()
            try:
                connection.send_command(*words)
                return connection.read_response()
            finally:
                client.connection_pool.release(connection)

    def facts(self, *words: str | bytes | int) -> dict[str, str]:
        """Return a reply of names and values, or lines of `name:value`."""
        reply = self.raw(*words)
        if isinstance(reply, bytes):
            pairs = [line.split(b":", 1) for line in reply.splitlines() if b":" in line]
        else:
            pairs = [*zip(reply[::2], reply[1::2], strict=True)]
        return {name.decode(): value.decode() for name, value in pairs}

    def flush(self) -> None:
        """Remove every key and script."""
        self.ask("FLUSHALL")
        self.ask("SCRIPT", "FLUSH")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers."""
        beyond = (BUS,) if "cluster_enabled" in self._config else ()
        self.port = self.port or self._held.take(*beyond)
        self._write_config()
        self._spawn()
        assert self._answers(), self.log

    def restart(self) -> None:
        """Start it again where it was: same port, same folder."""
        self._spawn()
        assert self._answers(), self.log

    def _write_config(self) -> None:
        lines = ["bind 127.0.0.1", f"port {self.port}", f"dir {self.folder}"]
        if self._sentinel:
            lines.append(self._sentinel)
        else:
            lines += [
                " ".join((name.replace("_", "-"), '""' if value == "" else str(value)))
                for name, value in self._config.items()
            ]
        if self._users:
            users = self.folder / "users.acl"
            users.write_text("\n".join(self._users) + "\n", encoding="utf-8")
            lines.append(f"aclfile {users}")
        self._config_file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def _config_file(self) -> Path:
        return self.folder / "redis.conf"

    def _spawn(self) -> None:
        mode = ["--sentinel"] if self._sentinel else []
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_server(self.name), self._config_file, *mode], stdout=log, stderr=log,
                cwd=self.folder, env=os.environ | self._environment,
            )  # fmt: skip

    def _answers(self) -> bool:
        """Wait until the process that was started answers; return False if it ended."""

        def what_is_there() -> str:
            assert self._process is not None
            if self._process.poll() is not None:
                return "nothing"
            with self.client() as client:
                try:
                    pid = int(client.info("server")["process_id"])
                except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
                    return "a server"
            return "a server" if pid == self.pid else ""

        return bool(wait_for(what_is_there, what=f"{self.name} on {self.port}") == "a server")

    def stop(self) -> None:
        """End the server in order, so that it saves its data if configured."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process: connections stay open, but nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and remove its files."""
        self.kill()
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            if number is signal.SIGTERM:
                self._process.send_signal(signal.SIGCONT)
        self._process.wait(timeout=30)
