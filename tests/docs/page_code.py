"""Makes modules of the Python that is written on pages."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest


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
