"""The array backends of the cache that tests can use."""

import importlib.util

import pytest

from warmpath.lab.simworker.v0.memory.array_backend import ArrayBackend
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend

BACKENDS = ("numpy", "torch")


def array_backend(name: str) -> ArrayBackend:
    """Return a backend; skip the test where its package is not installed."""
    if name == "numpy":
        return NumpyBackend()
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed (`make test-tensors` installs it)")
    from warmpath.lab.simworker.v0.memory.torch_backend import TorchBackend

    return TorchBackend()
