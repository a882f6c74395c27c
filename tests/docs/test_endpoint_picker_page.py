"""The commands of docs/reference/http.md work as they are written there, with its own configuration."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.own_ports import with_own_ports
from tests.docs.test_pages import ROOT
from warmpath.lab.local.ports import HeldPorts

PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
PORTS = ("7400", "7401", "5557", "5558", "5567", "5568", "8080", "8101", "8102")


class Folder:
    """A copy of the files that the page uses, on ports that are free."""

    def __init__(self, path: Path, ports: dict[str, int]) -> None:
        self._path = path
        self._ports = ports
        (path / ".venv").symlink_to(ROOT / ".venv")
        for name in ("docs/reference/http.md", "deploy/warmpath.toml"):
            file = path / name
            file.parent.mkdir(parents=True)
            file.write_text(self.text((ROOT / name).read_text(encoding="utf-8")))
        (path / "out").mkdir()

    def text(self, written: str) -> str:
        """Return a text of the page with our own ports."""
        return with_own_ports(written, self._ports, before=":|port_value: ")

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """Run a command that serves, until the context ends."""
        *before, last = self.text(command).split("; ")
        with (self._path / "log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-euc", "\n".join([*before, f"exec {last}"])],
                cwd=self._path, env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log, stderr=log,
            )  # fmt: skip
            try:
                yield
                assert process.poll() is None, self.log
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()

    def run(self, command: str) -> str:
        """Run a command and return what it prints; empty if it fails."""
        done = subprocess.run(
            ["bash", "-c", self.text(command)],
            cwd=self._path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    @property
    def log(self) -> str:
        return (self._path / "log").read_text(errors="replace")


@pytest.mark.deep
def test_the_page_can_be_tried_from_its_text(tmp_path: Path, held_ports: HeldPorts) -> None:
    serve, ask = re.findall(r"```sh\n(.*?)\n```\n", PAGE, re.DOTALL)
    folder = Folder(tmp_path, {port: held_ports.take() for port in PORTS})
    with ExitStack() as stack:
        for command in serve.splitlines():
            stack.enter_context(folder.serving(command))
        pods = ".venv/bin/warmpath pods --router 127.0.0.1:7400"
        while folder.run(pods).count("exact") < 2:
            time.sleep(0.05)
        first, second = ask.splitlines()
        while "x-warmpath-pod" not in folder.run("curl -si 127.0.0.1:8080/v1/models"):
            time.sleep(0.05)
        cold = folder.run(first)
        assert "x-warmpath-cached-tokens: 0\n" in cold.replace("\r", "")
        where = re.search(r"x-warmpath-pod: (pod-[12])", cold)
        assert where
        # The engine announces the blocks soon after it has answered.
        while "x-warmpath-cached-tokens: 192" not in (warm := folder.run(second)):
            time.sleep(0.05)
            assert "200 OK" in warm, folder.log
        assert where[0] in warm
        told = re.search(r"`(x-warmpath-saved-seconds: [0-9.]+)`", PAGE)
        assert told
        assert told[1] in warm
