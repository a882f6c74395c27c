"""The examples on extending and the first change of CONTRIBUTING.md work as printed; the seams' suites pass on them."""

import importlib
import inspect
import json
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmpath
from tests.docs.page_code import blocks, module
from tests.docs.test_pages import ROOT
from tests.scorer.ranked import rank
from warmpath.indexer.engines.event import Batch, MalformedEventError
from warmpath.prefixstore.pool import TokenizerPool
from warmpath.prefixstore.store import LruStore
from warmpath.prefixstore.tokenizers.tokenizer import pack_ids
from warmpath.prefixstore.workers import Workers
from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.policy import make_policy

PAGE = ROOT / "docs" / "reference" / "extending.md"
CODEC, POLICY, TOKENIZER = blocks(PAGE)
DECLARED = blocks(PAGE, "toml")[0].splitlines()[1]
JSON = st.recursive(
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["put", "drop", "flush", "gpu"]),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)
TEXTS = st.lists(
    st.text(max_size=3).map(lambda end: "a known beginning, é " * 400 + end), max_size=6
)


def checks_of(suite: ModuleType, *parameters: str) -> list[Callable[..., Any]]:
    """Return a module's tests that take these parameters, and no others."""
    found = [
        one
        for name, one in vars(suite).items()
        if name.startswith("test_") and tuple(inspect.signature(one).parameters) == parameters
    ]
    assert found
    return found


@pytest.fixture(scope="module")
def acme() -> Callable[[bytes], Batch]:
    """Return the decoder of the page."""
    with pytest.MonkeyPatch.context() as patch:
        return module("acme", CODEC, patch).decode  # type: ignore[no-any-return]


def payload(*events: list[object]) -> bytes:
    return json.dumps({"at": 1.5, "events": events}).encode()


def test_a_prompt_is_found_where_it_was_stored(acme: Callable[[bytes], Batch]) -> None:
    index = warmpath.Index("demo")
    stored: list[object] = ["put", [11, 12], None, "gpu", list(range(32))]
    index.feed("pod-1", acme(payload(stored)).events)
    assert [one.matched_tokens for one in warmpath.Scorer(index).score(range(40))] == [32]
    index.feed("pod-1", acme(payload(["drop", [12], "gpu"])).events)
    assert [one.matched_tokens for one in warmpath.Scorer(index).score(range(40))] == [16]


def test_an_event_that_cannot_be_read_leaves_the_others(acme: Callable[[bytes], Batch]) -> None:
    batch = acme(payload(["put", [1], None, "gpu", [7]], ["flush"], ["dance"]))
    assert len(batch.events) == 1
    assert [one.kind for one in batch.unread] == ["BlockStored", ""]


@given(
    received=st.binary() | JSON.map(lambda events: json.dumps({"at": 0, "events": events}).encode())
)
def test_whatever_comes_is_a_batch_or_malformed(
    acme: Callable[[bytes], Batch], received: bytes
) -> None:
    with suppress(MalformedEventError):
        assert isinstance(acme(received), Batch)


def test_the_page_names_each_file_that_has_a_list_of_engines() -> None:
    named = set(re.findall(r"^\| `(\S+\.py)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    folders = (
        "cli", "indexer", "lab/local", "lab/record", "lab/verify", "publisher", "router",
        "warmpath",
    )  # fmt: skip
    having = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if '"sglang"' in path.read_text(encoding="utf-8")
    }
    # The dialects are the compiled scanner's, each engine has its file, the APIs and the simulation have another list each.
    others = ("indexer/compiled/", "indexer/engines/", "router/inference_api/", "lab/simulate/")
    assert {one for one in having if not one.startswith(others)} == named


def declare(monkeypatch: pytest.MonkeyPatch, line: str, code: str) -> str:
    """Declare a policy that a page shows in this process, by the line of its entry point; return its name."""
    name, value = line.strip().replace('"', "").split(" = ")
    declared = EntryPoint(name, value, "warmpath.policies")
    # A process looks once for its policies: those that it has found stay as they are.
    monkeypatch.setattr("warmpath.scorer.policy._registered", lambda: {name: declared})
    module("my_package", "", monkeypatch)
    module(value.partition(":")[0], code, monkeypatch)
    return name


def test_the_policy_avoids_full_caches_and_passes_the_suite_of_every_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = declare(monkeypatch, DECLARED, POLICY)
    full = Candidate("full", rank=0, cached=900, prefill=0.1, load=Load(kv_usage=1.0))
    cold = Candidate("cold", rank=0, cached=0, prefill=1.0, load=Load(kv_usage=0.2))
    first, second = rank(make_policy(name), Request(1000), [full, cold], Random(0))
    assert (first.candidate.pod, first.cost) == ("cold", 1.0)
    assert dict(second.terms)["full_cache"] == 2.0
    unpriced = make_policy(name, {"seconds": 0.0})
    assert rank(unpriced, Request(1000), [full, cold], Random(0))[0].candidate.pod == "full"
    for check in checks_of(importlib.import_module("tests.conformance.test_policies"), "policy"):
        check(make_policy(name))


@pytest.mark.deep
def test_the_policy_passes_the_random_tests_of_every_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = declare(monkeypatch, DECLARED, POLICY)
    every = importlib.import_module("tests.conformance.test_policies")
    monkeypatch.setattr(every, "POLICIES", {name: make_policy(name)})
    for check in checks_of(every):
        check()


@given(TEXTS)
async def test_the_pool_gives_the_tokens_of_the_whole_text(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tokenizer = module("characters", TOKENIZER, patch).CharacterSource().load()
    pool = TokenizerPool(
        lambda: LruStore(1 << 20, 1),
        Workers(1, hang_seconds=60, most_lost=0),
        max_prompts=9,
        max_bytes=1 << 20,
    )
    for text in texts:
        tokens = await pool.encode(
            "characters", tokenizer, text, add_special_tokens=True, timeout=None
        )
        assert tokens.ids == pack_ids([0, *map(ord, text)])
    await pool.close()


FIRST = ROOT / "CONTRIBUTING.md"


def test_the_policy_of_the_page_passes_the_test_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test, policy = blocks(FIRST)
    [line] = blocks(FIRST, "toml")
    declare(monkeypatch, line, policy)
    written = module("first_change", test, monkeypatch)
    [check] = [one for called, one in vars(written).items() if called.startswith("test_")]
    check()
