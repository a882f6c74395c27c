"""Does what pages say: makes modules of their Python, and runs their commands on ports that are free."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.test_pages import ROOT
from warmpath.lab.local.ports import HeldPorts


def blocks(page: Path, language: str = "python") -> list[str]:
    """Return a page's blocks of code, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module that others can import by its name until the test ends."""
    made = ModuleType(name)
    # Dataclasses look their module up; nothing of it may stay behind.
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(code, name, "exec"), made.__dict__)
    return made


class Reader:
    """Runs a page's commands in a folder, on free ports in place of those that follow the pattern `before`."""

    def __init__(
        self, folder: Path, ports: Iterable[str], held: HeldPorts, before: str = ":"
    ) -> None:
        self.folder = folder
        self._ports = {port: str(held.take()) for port in ports}
        self._before = before
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self._options: Any = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(ROOT)}}

    def text(self, written: str) -> str:
        """Return a text of the page with our own ports."""
        # All at once: a free port may begin as the page's next one does.
        pattern = rf"({self._before})(\d+)\b"
        return re.sub(pattern, lambda one: one[1] + self._ports.get(one[2], one[2]), written)

    def copy(self, name: str) -> None:
        """Copy a file of the project, with our own ports."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text((ROOT / name).read_text(encoding="utf-8")))

    def run(self, block: str, *, may_fail: bool = False, errors: bool = False) -> str:
        """Run a block and return what it prints, with its `errors` last if they are asked for."""
        done = subprocess.run(
            ["bash", "-euc", self.text(block)], capture_output=True, text=True, check=False, **self._options
        )  # fmt: skip
        assert may_fail or not done.returncode, (block, done.stdout, done.stderr)
        return done.stdout + (done.stderr if errors else "")

    @contextmanager
    def serving(self, block: str, *, speaks: bool = True) -> Iterator[Path]:
        """Run a block that serves until the context ends; yield its log, once it `speaks`."""
        *before, last = self.text(block).split("; ")
        log = self.folder / f"{len([*self.folder.glob('*.log')])}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-euc", "\n".join([*before, f"exec {last}"])],
                stdout=subprocess.PIPE if speaks else file, stderr=file, **self._options,
            )  # fmt: skip
            try:
                if speaks:
                    assert process.stdout is not None
                    assert process.stdout.readline(), log.read_text()
                yield log
                assert process.poll() is None, log.read_text()
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate()
