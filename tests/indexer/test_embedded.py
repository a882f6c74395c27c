"""The index that is chosen, and where compiled code is kept."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.index.memory import MemoryIndex

ROOT = Path(__file__).resolve().parents[2]


def test_the_compiled_index_is_chosen_where_numba_is() -> None:
    assert isinstance(embedded_index(1 << 24), ArrayIndex)


def test_the_pure_index_serves_where_numba_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith("warmpath.indexer.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert isinstance(embedded_index(1 << 24), MemoryIndex)
    assert "pure Python" in caplog.text


def test_nothing_is_left_to_compile_when_the_index_is_ready() -> None:
    """What other compiled functions call is compiled with them; what Python calls is used at once."""
    script = (
        "import pkgutil, importlib, warmpath.indexer.compiled as package\n"
        "from warmpath.indexer.embedded import embedded_index\n"
        "embedded_index(1 << 24)\n"
        "modules = pkgutil.walk_packages(package.__path__, 'warmpath.indexer.compiled.')\n"
        "names = [one.name for one in modules]\n"
        "values = [vars(importlib.import_module(name)).values() for name in names]\n"
        "functions = {one for each in values for one in each if hasattr(one, 'py_func')}\n"
        "called = {name for one in functions for name in one.py_func.__code__.co_names}\n"
        "used = {one.__name__ for one in functions if one.signatures}\n"
        "print(*{one.__name__ for one in functions} - called - used)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not ended.stdout.split()


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
        "print(jit._settings.CACHE_DIR, sum(refill.stats.cache_hits.values()))\n"
    )

    def run(text: str) -> list[str]:
        ended = subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return ended.stdout.split()

    folder, hits = run(script)
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
    folder, hits = run(patched)
    assert "warmpath-compiled-" in folder
    assert hits == "1", "what was built is used"
