"""The commands of docs/guides/coming-from.md work as they are written there."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.own_ports import with_own_ports
from tests.docs.test_pages import ROOT
from warmpath.lab.local.ports import HeldPorts

PAGE = (ROOT / "docs" / "guides" / "coming-from.md").read_text(encoding="utf-8")
PORTS = ("7400", "7401", "5557", "5558", "8101")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
SERVER = """
[server]
listen = "127.0.0.1:7400"
metrics-listen = "127.0.0.1:7401"
"""
"""The defaults, which the page leaves out and the test replaces by free ports."""

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="the page needs curl")


class Reader:
    """Does what the page says, on ports that are free."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self._folder = folder
        self._ports = ports
        for name in (".venv", "tests"):
            (folder / name).symlink_to(ROOT / name)
        self._environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def text(self, block: str) -> str:
        """Return a block of the page with our own ports."""
        return with_own_ports(block, self._ports)

    def run(self, block: str) -> str:
        """Run a block and return what it prints."""
        return subprocess.run(
            ["bash", "-euc", self.text(block)], cwd=self._folder, env=self._environment,
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip

    @contextmanager
    def serving(self, block: str) -> Iterator[None]:
        """Run a block that serves, until the context ends."""
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {self.text(block)}"], cwd=self._folder, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.deep
def test_every_command_of_the_page_does_what_the_page_says(
    tmp_path: Path, held_ports: HeldPorts
) -> None:
    reader = Reader(tmp_path, {port: held_ports.take() for port in PORTS})
    write, engine, router, send, llmd, dynamo = BLOCKS
    reader.run(write)
    config = tmp_path / "out/coming-from.toml"
    config.write_text(config.read_text() + reader.text(SERVER))
    with ExitStack() as stack:
        stack.enter_context(reader.serving(engine))
        stack.enter_context(reader.serving(router))
        assert '"completion_tokens":' in reader.run(send)
        while "score" not in (told := reader.run(llmd)):
            time.sleep(0.01)
        found = re.search(r"score: (\d+)", told)
        assert found
        blocks = int(found[1])
        assert blocks > 0
        assert f'pod: "{reader.text("127.0.0.1:8101")}"' in told
        query, overlap = map(json.loads, reader.run(dynamo).replace("}{", "}\n{").splitlines())
        assert query["scores"] == {"1": {"0": blocks * 16}}
        [worker] = overlap["workers"]
        assert worker["worker_id"] == 1
        assert worker["device_blocks"] == blocks
