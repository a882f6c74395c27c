"""`import warmpath` imports nothing else, and only the clients import gRPC."""

import ast
import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

import warmpath
from tests.base_install import run
from warmpath import Index
from warmpath.indexer.engines.event import Stored
from warmpath.library import index as index_module
from warmpath.library import picker
from warmpath.library import pod_score as scorer

HEAVY = ("numpy", "numba", "google.protobuf", "grpc", "msgspec", "tokenizers", "zmq", "aiohttp")


def imported(code: str) -> set[str]:
    """Return which heavy packages, and which of ours, a process has imported after some code."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = set(json.loads(ran.stdout.splitlines()[-1]))
    ours = {name for name in found if name.partition(".")[0] in ("router", "indexer", "scorer")}
    return ours | {name for name in HEAVY if name in found}


def test_the_import_itself_imports_nothing() -> None:
    assert imported("import warmpath") == set()
    assert imported("import warmpath\ndir(warmpath)") == set()


FED = (
    "import warmpath\n"
    "index = warmpath.Index('m', max_bytes=1 << 24)\n"
    "index.feed('p', [warmpath.Stored.of([1], range(16), block_size=16)])\n"
)


def test_index_scorer_and_picker_work_without_grpc_and_tokenizers() -> None:
    code = FED + (
        "assert warmpath.Scorer(index).score(range(17))[0].matched_tokens == 16\n"
        "assert warmpath.Picker(index).pick(range(17)).pod == 'p'\n"
    )
    found = imported(code)
    assert "warmpath" not in found
    assert found.isdisjoint({"grpc", "tokenizers", "zmq", "aiohttp"})
    assert "grpc" in imported("import warmpath\nwarmpath.Client")


def test_the_base_install_suffices_for_the_clients_and_the_index_names_its_extra() -> None:
    done = run("import warmpath\nwarmpath.Client, warmpath.AsyncClient\nwarmpath.Index('m')")
    assert "the index needs numba: pip install 'warmpath-router[router]'" in done.stderr
    done = run("import warmpath\nwarmpath.openai(warmpath.Client('127.0.0.1:1'))")
    assert "ImportError: warmpath.openai needs httpx2 (or httpx): pip install httpx2" in done.stderr


def test_every_public_name_is_there_and_declared_for_type_checkers() -> None:
    assert dir(warmpath) == sorted([*warmpath.__all__, "__doc__"])
    for name in warmpath.__all__:
        assert getattr(warmpath, name) is not None
    source = Path(warmpath.__file__).read_text(encoding="utf-8")
    [declared] = [
        {alias.asname or alias.name for line in node.body for alias in line.names}  # type: ignore[attr-defined]
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    assert declared == set(warmpath.__all__)
    assert Path(warmpath.__file__).with_name("py.typed").exists()


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'warmpath' has no attribute 'Indexer'"):
        warmpath.Indexer  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("module", [index_module, scorer, picker])
def test_the_examples_of_the_docstrings_are_true(module: object) -> None:
    names = {"Index": Index, "Stored": Stored}
    assert not doctest.testmod(module, extraglobs=names).failed  # type: ignore[arg-type]
