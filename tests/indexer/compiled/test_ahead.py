"""Functions that are compiled ahead answer as those that Numba compiles, without Numba."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WITHOUT = """
import sys
sys.modules.update(numba=None, llvmlite=None)
from warmpath.indexer.compiled import jit
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.warm_up import warm_up
from warmpath.indexer.embedded import embedded_index
from warmpath.router.pick import compiled
warm_up(ArrayIndex(1 << 20))
index = embedded_index(1 << 24)
index.add(3, range(9))
assert [tuple(one)[:2] for one in index.stretches(range(9))]
assert index.count(3) == 9
from warmpath.h2grpc.http2 import callbacks
assert callbacks.callbacks() and callbacks.READ
"""


@pytest.mark.deep
def test_what_was_compiled_ahead_works_without_numba_and_follows_engines_as_the_reference_does(
    tmp_path: Path,
) -> None:
    if not shutil.which("cc") or not shutil.which("c++"):
        pytest.skip("no compiler of C and C++ is installed")
    program = [sys.executable, str(ROOT / "deploy" / "image" / "ahead.py"), str(tmp_path)]
    subprocess.run(program, cwd=ROOT, check=True)
    # Without what this run asks of random tests, which would take minutes here.
    kept = {name: value for name, value in os.environ.items() if name != "WARMPATH_PROFILE"}
    environment = {**kept, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, env=environment, check=True)
    tests = [
        "tests/indexer/compiled/test_array_rank.py",
        "tests/indexer/compiled/test_forms_agree.py",
        "tests/h2grpc/test_framing_properties.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
