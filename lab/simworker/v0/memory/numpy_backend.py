"""A KV cache in NumPy's arrays: the reference, which needs no PyTorch."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warmpath.lab.simworker.v0.device import Device

Array = npt.NDArray[Any]

# NumPy has no bfloat16: an integer of its size takes its place, since the cache is only copied.
_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "fp8": np.uint8}


class NumpyBackend:
    """Keeps the blocks of both devices in this process's memory, in arrays of their own."""

    def zeros(
        self,
        shape: tuple[int, ...],
        dtype: str,
        device: Device,  # noqa: ARG002 - there is one memory
    ) -> Array:
        return np.zeros(shape, _DTYPES[dtype])

    def copy_blocks(
        self, source: Array, destination: Array, pairs: Iterable[tuple[int, int]]
    ) -> None:
        for from_block, to_block in pairs:
            destination[:, to_block] = source[:, from_block]

    def write(
        self, array: Array, block_ids: Sequence[int], slots: Sequence[int], content: bytes
    ) -> None:
        entries, _, _, heads, size = array.shape
        elements = np.frombuffer(content, np.uint8).reshape(len(slots), entries, heads, size)
        array[:, list(block_ids), list(slots)] = elements.swapaxes(0, 1)

    def read(self, array: Array, block_ids: Sequence[int]) -> bytes:
        return np.moveaxis(array[:, list(block_ids)], 0, 2).astype(np.uint8).tobytes()
