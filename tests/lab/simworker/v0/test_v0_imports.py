"""Importing an engine brings no library of arrays."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("kind", ["v0", "trtllm"])
def test_an_engine_brings_no_library_of_arrays(kind: str) -> None:
    module = f"warmpath.lab.simworker.{kind}.engine"
    code = f"import {module}; import sys; print({{'torch', 'numpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
