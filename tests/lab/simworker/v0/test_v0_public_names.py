"""Importing v0's packages gives their public names, and no library of arrays."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["warmpath.lab.simworker.v0", "warmpath.lab.simworker.trtllm"])
def test_all_public_names_are_there_and_bring_no_library_of_arrays(package: str) -> None:
    code = f"from {package} import *; import sys; print({{'torch', 'numpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
