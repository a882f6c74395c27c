"""The compiled index: when it is compiled, where its code is kept, and until when."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numba
import pytest
from numba.core.event import install_listener

from warmpath.h2grpc.http2.library import LibraryError
from warmpath.indexer.compiled import first_compilation, jit
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.first_compilation import FirstCompilation
from warmpath.indexer.embedded import embedded_index

ROOT = Path(__file__).resolve().parents[3]


def run(script: str, *, cwd: Path = ROOT) -> list[str]:
    """Return the words that a script of Python prints in a process of its own.

    Here, where all is compiled, it must not say anything else.
    """
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True, check=True
    )
    assert cwd != ROOT or not ended.stderr
    return ended.stdout.split()


def test_the_compiled_index_is_chosen_where_numba_is() -> None:
    assert isinstance(embedded_index(1 << 24), ArrayIndex)


def test_without_numba_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("warmpath.indexer.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ModuleNotFoundError, match=r"warmpath-router\[router\]"):
        embedded_index(1 << 24)


def test_one_warning_comes_before_functions_are_compiled_and_says_where_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    for is_lasting, where in ((True, f"kept in {jit.folder()}"), (False, "this process only")):
        monkeypatch.setattr(jit, "IS_LASTING", is_lasting)
        caplog.clear()
        with install_listener("numba:compile", FirstCompilation()):
            assert [numba.njit(lambda one: one + 1)(1) for _ in range(2)] == [2, 2]
        (said,) = caplog.messages
        assert said.startswith("compiling the index of warmpath: once, ")
        assert where in said


def test_a_second_process_compiles_a_part_where_there_is_a_processor_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(jit, "IS_LASTING", True)
    told = tmp_path / "told"
    program = (
        f"from warmpath.indexer.compiled import jit; open({str(told)!r}, 'x').write(jit.__file__)"
    )
    monkeypatch.setattr(first_compilation, "HELP", program)
    with install_listener("numba:compile", first := FirstCompilation()):
        numba.njit(lambda one: one + 1)(1)
        numba.njit(lambda one: one + 2)(1)
        first.await_helper()
    assert told.read_text(encoding="utf-8") == jit.__file__


def test_a_function_for_compiled_callers_alone_is_compiled_once_for_all_constants() -> None:
    scaled = jit.inlined(lambda one, factor: one * factor)
    assert numba.njit(lambda one: scaled(one, 2) + scaled(one, 3))(5) == 25
    assert len(vars(scaled)["overloads"]) == 1
    with pytest.raises(TypeError):
        scaled(5, 2)


def test_nothing_is_said_or_left_to_compile_when_the_index_is_loaded_from_disk() -> None:
    embedded_index(1 << 24)
    script = (
        "from warmpath.indexer.compiled import jit\n"
        "from warmpath.indexer.embedded import embedded_index\n"
        "embedded_index(1 << 24)\n"
        "print(*(name for name, one in jit.FUNCTIONS.items() if not one.signatures))\n"
    )
    assert not run(script)


@pytest.mark.deep
def test_compiled_code_is_used_from_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """An image is built with compiled code and runs on a read-only file system."""
    package = tmp_path / "warmpath"
    shutil.copytree(ROOT / "warmpath", package, ignore=shutil.ignore_patterns("__pycache__", "lab"))
    script = (
        "from warmpath.indexer.compiled import jit\n"
        "from warmpath.indexer.compiled.blocks.table import refill\n"
        "import numpy as np\n"
        "places, words = np.zeros(4, np.uint32), np.zeros((1, 2), np.uint64)\n"
        "refill(places, words, places, np.zeros(4, np.uint64))\n"
        "print(jit.folder(), sum(refill.stats.cache_hits.values()))\n"
    )
    folder, hits = run(script, cwd=tmp_path)
    assert folder.startswith(str(package))
    assert hits == "0"
    # Root may write anywhere, so writing there is made to fail.
    patched = script.replace(
        "from warmpath.indexer.compiled import jit",
        "import pathlib, tempfile; real = tempfile.TemporaryFile\n"
        "def refuse(dir=None, **more):\n"
        f"    if str(dir).startswith({str(package)!r}): raise OSError('read-only')\n"
        "    return real(dir=dir, **more)\n"
        "tempfile.TemporaryFile = refuse\n"
        "from warmpath.indexer.compiled import jit",
    )
    folder, hits = run(patched, cwd=tmp_path)
    assert "warmpath-compiled-" in folder
    assert hits == "1", "what was built is used"


def test_another_constant_in_a_neighbour_of_what_is_compiled_is_noticed(tmp_path: Path) -> None:
    layout = tmp_path / "layout.py"
    found = set()
    for number in (1, 2):
        layout.write_text(f"WIDTH = {number}\n", encoding="utf-8")
        found.add(jit.digest_of(tmp_path))
    layout.rename(tmp_path / "other.py")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more.py").write_text("DEPTH = 1\n", encoding="utf-8")
    found.add(jit.digest_of(tmp_path))
    assert len(found) == 3


def test_the_callbacks_of_libnghttp2_take_constants_only_from_folders_that_are_looked_at() -> None:
    try:
        from warmpath.h2grpc.http2 import callbacks
    except LibraryError as error:
        pytest.skip(str(error))
    neighbours = [
        Path(value.__file__)
        for value in (callbacks, *vars(callbacks).values())
        if isinstance(value, ModuleType)
        and value.__name__.startswith("warmpath.")
        and value.__file__
    ]
    assert len(neighbours) > 2
    for path in neighbours:
        assert any(path.is_relative_to(folder) for folder in jit.SOURCES), path


# In a process of its own: in ours other tests have compiled more than `warm_up` does.
PROGRAM = """
import json
import sys
from array import array

from msgspec.structs import replace
from numba.core.dispatcher import Dispatcher

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.warm_up import warm_up
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.embedded import packed_keys
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.prompt.parse import listed_ids


def kinds():
    named = [
        (f"{name}.{key}", value)
        for name, module in list(sys.modules.items())
        if name.startswith("warmpath.indexer.compiled")
        for key, value in vars(module).items()
        if isinstance(value, Dispatcher)
    ]
    return {name: len(value.signatures) for name, value in named}


index = ArrayIndex(1 << 20)
warm_up(index)
before = kinds()
chain = Chain(7, array("I", range(64)).tobytes(), 16, 4)
index.match(chain, leading=True)
index.match(replace(chain, made=packed_keys(chain)), leading=True)
index.match(replace(chain, extras=[None, b"x", None, None]))
listed_ids(wire.TokenIds(ids=[bytes([1, 2, 3])]), "ids")
print(json.dumps([before, kinds()]))
"""


def test_no_form_of_a_prompt_makes_the_first_caller_wait_for_a_compiler() -> None:
    before, after = json.loads(" ".join(run(PROGRAM)))
    assert before
    assert after == before
