"""The first change of CONTRIBUTING.md works as it is written there."""

from importlib.metadata import EntryPoint

import pytest

from tests.docs.page_code import blocks, module
from tests.docs.test_pages import ROOT

PAGE = ROOT / "CONTRIBUTING.md"


def test_the_policy_of_the_page_passes_the_test_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test, policy = blocks(PAGE)
    [line] = blocks(PAGE, "toml")
    name, value = line.strip().replace('"', "").split(" = ")
    declared = EntryPoint(name, value, "warmpath.policies")
    # A process looks once for its policies: those that it has found stay as they are.
    monkeypatch.setattr("warmpath.scorer.policy._registered", lambda: {name: declared})
    module(value.partition(":")[0], policy, monkeypatch)
    written = module("first_change", test, monkeypatch)
    [check] = [one for called, one in vars(written).items() if called.startswith("test_")]
    check()
