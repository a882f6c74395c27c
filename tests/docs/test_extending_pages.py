"""The examples of the pages on extending are run as they are printed, and the suites of the seams are run on them."""

import asyncio
import contextlib
import importlib
import inspect
import io
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.docs.page_code import blocks, module
from tests.docs.test_pages import ROOT
from warmpath.scorer.policy import make_policy

PAGES = ROOT / "docs" / "reference"
FEW = settings(max_examples=20, deadline=None)


def run(check: Callable[..., Any]) -> None:
    """Run a test that a page has; with few examples if it is one of hypothesis, in a loop if it is async."""
    if is_hypothesis_test(check):
        inner = check.hypothesis.inner_test  # type: ignore[attr-defined]
        if inspect.iscoroutinefunction(inner):
            check.hypothesis.inner_test = lambda **given: asyncio.run(inner(**given))  # type: ignore[attr-defined]
        check = FEW(check)
    check()


def checks_of(suite: ModuleType, *parameters: str) -> list[Callable[..., Any]]:
    """Return a module's tests that take these parameters, and no others."""
    found = [
        one
        for name, one in vars(suite).items()
        if name.startswith("test_") and tuple(inspect.signature(one).parameters) == parameters
    ]
    assert found
    return found


def shown(code: str, names: dict[str, Any]) -> None:
    """Run an example; each line that prints says in a comment what it prints."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(code, names)
    said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert said
    assert told.getvalue().splitlines() == said


def test_the_codec_passes_the_tests_of_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, test = blocks(PAGES / "extending.md")
    module("warmpath.indexer.engines.acme", codec, monkeypatch)
    suite = module("test_acme", test, monkeypatch)
    for check in checks_of(suite):
        run(check)


def test_the_page_names_each_file_that_has_a_list_of_engines() -> None:
    page = (PAGES / "extending.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\S+\.py)` \|", page, re.MULTILINE))
    folders = (
        "cli",
        "indexer",
        "lab/local",
        "lab/record",
        "lab/verify",
        "publisher",
        "router",
        "warmpath",
    )
    having = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if '"sglang"' in path.read_text(encoding="utf-8")
    }
    # The dialects are the compiled scanner's, each engine has its file, the APIs and the simulation have another list each.
    others = ("indexer/compiled/", "indexer/engines/", "router/inference_api/", "lab/simulate/")
    assert {one for one in having if not one.startswith(others)} == named


def test_the_index_passes_the_suite_of_every_index(monkeypatch: pytest.MonkeyPatch) -> None:
    code, line, fed = blocks(PAGES / "extending-index.md")
    made = module("by_slot", code, monkeypatch)
    suite = importlib.import_module("tests.conformance.test_index")
    monkeypatch.setattr(suite, "BACKENDS", {"reference": suite.BACKENDS["reference"]})
    exec(line, {"BACKENDS": suite.BACKENDS, "BySlot": made.BySlot})
    for check in checks_of(suite, "index"):
        check(suite.BACKENDS["by-slot"]())
    run_state_machine_as_test(suite.EveryBackendAgrees, settings=FEW)
    shown(fed, vars(made))


def declare(monkeypatch: pytest.MonkeyPatch) -> str:
    """Declare the policy of the page in this process; return its name."""
    [code, _] = blocks(PAGES / "extending-policy.md")
    line = blocks(PAGES / "extending-policy.md", "toml")[0].splitlines()[1]
    name, value = line.replace('"', "").split(" = ")
    declared = EntryPoint(name, value, "warmpath.policies")
    # A process looks once for its policies: those that it has found stay as they are.
    monkeypatch.setattr("warmpath.scorer.policy._registered", lambda: {name: declared})
    module("my_package", "", monkeypatch)
    module(value.partition(":")[0], code, monkeypatch)
    return name


def test_the_policy_passes_its_test_and_the_suite_of_every_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy(declare(monkeypatch))
    suite = module("test_spare_cache", blocks(PAGES / "extending-policy.md")[1], monkeypatch)
    for check in checks_of(suite):
        run(check)
    for check in checks_of(importlib.import_module("tests.conformance.test_policies"), "policy"):
        check(policy)


@pytest.mark.deep
def test_the_policy_passes_the_random_tests_of_every_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = declare(monkeypatch)
    every = importlib.import_module("tests.conformance.test_policies")
    monkeypatch.setattr(every, "POLICIES", {name: make_policy(name)})
    for check in checks_of(every):
        check()


def test_the_tokenizer_passes_its_test_and_scores_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    code, test, used = blocks(PAGES / "extending-tokenizer.md")
    made = module("characters", code, monkeypatch)
    for check in checks_of(module("test_characters", code + test, monkeypatch)):
        run(check)
    shown(used, vars(made))
