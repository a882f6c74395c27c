"""The commands of docs/guides/security.md work as they are written there, from the authority to new tokens."""

import re
import shutil
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

PAGE = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
PORTS = ("7400", "7401", "7500", "5557", "5558", "8101")
SERVING = ("warmpath serve", "warmpath publish", "warmpath simworker")

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("curl")), reason="the page needs openssl and curl"
)


class Reader:
    """Does what the page says in a folder, on ports that are free."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self._folder = folder
        self._ports = ports
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self._functions = ""

    def text(self, block: str) -> str:
        """Return a block of the page with our own ports."""
        return with_own_ports(block, self._ports)

    def run(self, block: str) -> str:
        """Run a block and return what it prints; the functions of earlier blocks are known."""
        if "() {" in block:
            self._functions = block[: block.index("\n}\n") + 3]
        elif "issue " in block:
            block = self._functions + block
        done = subprocess.run(
            ["bash", "-euc", self.text(block)],
            cwd=self._folder, env=self._environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout + done.stderr

    @contextmanager
    def serving(self, block: str) -> Iterator[Path]:
        """Run a block that serves, until the context ends; yield its log."""
        log = self._folder / f"{len(block)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-euc", f"exec {self.text(block)}"],
                cwd=self._folder, env=self._environment(), stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip
            try:
                assert process.stdout is not None
                assert process.stdout.readline(), log.read_text()
                yield log
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate()

    @staticmethod
    def _environment() -> dict[str, str]:
        import os

        return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def reader(tmp_path: Path, held_ports: HeldPorts) -> Reader:
    return Reader(tmp_path, {port: held_ports.take() for port in PORTS})


@pytest.mark.deep
def test_every_command_of_the_page_does_what_the_page_says(reader: Reader, tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|toml)\n(.*?)```", PAGE, re.DOTALL)
    said = []
    log = Path()
    with ExitStack() as stack:
        for kind, block in blocks:
            if kind == "toml":
                (tmp_path / "out/tls/router.toml").write_text(reader.text(block))
            elif any(name in block for name in SERVING):
                served = stack.enter_context(reader.serving(block))
                log = served if "warmpath serve" in block else log
            else:
                said.append(reader.run(block))
        text = "".join(said)
        assert "router.toml: ok" in text
        assert "client 'gateway' lacks the role 'read', which ListPods needs" in text
        assert 'warmpath_kept_out_total{asked="ListPods",why="role"} 1.0' in text
        assert "\nok\n" in text
        while not ("server.tls: read again" in log.read_text() and "'monitor'" in log.read_text()):
            time.sleep(0.01)
        pods = next(block for _, block in blocks if "warmpath pods" in block)
        while "exact" not in (shown := reader.run(pods)):
            assert "pod-1" in shown
