"""Programs where the router's parts, which are an extra, are not installed."""

import subprocess
import sys
from collections.abc import Iterable

from warmpath.cli.main import PARTS

LEFT_OUT = (*PARTS, "llvmlite")


def without(modules: Iterable[str]) -> str:
    """Return the beginning of a program that finds none of these modules."""
    return f"""
import sys


class LeftOut:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {tuple(modules)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, LeftOut())
"""


def run(code: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a program."""
    return subprocess.run(
        [sys.executable, "-c", without(LEFT_OUT) + code, *args],
        capture_output=True,
        text=True,
        check=False,
    )
