"""The first change of CONTRIBUTING.md works as it is written there."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(name)
    # Dataclasses look their module up; nothing of it may stay behind.
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(code, name, "exec"), made.__dict__)
    return made


def test_the_policy_of_the_page_passes_the_test_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test, policy = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [line] = re.findall(r"```toml\n(.*?)\n```", PAGE, re.DOTALL)
    name, value = line.replace('"', "").split(" = ")
    declared = EntryPoint(name, value, "warmpath.policies")
    # A process looks once for its policies: those that it has found stay as they are.
    monkeypatch.setattr("scorer.policy._registered", lambda: {name: declared})
    module(value.partition(":")[0], policy, monkeypatch)
    written = module("first_change", test, monkeypatch)
    [check] = [one for called, one in vars(written).items() if called.startswith("test_")]
    check()
