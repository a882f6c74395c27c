"""A KV cache in PyTorch's tensors: on a GPU, if there is one, and in pinned memory beside it.

The only module that imports PyTorch, which is optional: `pip install warmpath-router[tensors]`.
"""

from collections.abc import Iterable, Sequence

import torch

from warmpath.lab.simworker.v0.device import Device

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.uint8,
}


class TorchBackend:
    """The GPU is PyTorch's current CUDA device; without one, this process's memory takes its place."""

    def __init__(self) -> None:
        self.gpu = "cuda" if torch.cuda.is_available() else "cpu"

    def zeros(self, shape: tuple[int, ...], dtype: str, device: Device) -> torch.Tensor:
        """Return a tensor of zeros; `dtype` is one of `DTYPES`.

        With a CUDA device, the CPU's tensor is pinned, so that copies need no staging.
        """
        if device is Device.GPU:
            return torch.zeros(shape, dtype=_DTYPES[dtype], device=self.gpu)
        return torch.zeros(shape, dtype=_DTYPES[dtype], pin_memory=self.gpu == "cuda")

    def copy_blocks(
        self, source: torch.Tensor, destination: torch.Tensor, pairs: Iterable[tuple[int, int]]
    ) -> None:
        for from_block, to_block in pairs:
            destination[:, to_block].copy_(source[:, from_block])

    def write(
        self, array: torch.Tensor, block_ids: Sequence[int], slots: Sequence[int], content: bytes
    ) -> None:
        entries, _, _, heads, size = array.shape
        elements = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        elements = elements.view(len(slots), entries, heads, size).transpose(0, 1)
        array[:, list(block_ids), list(slots)] = elements.to(array)

    def read(self, array: torch.Tensor, block_ids: Sequence[int]) -> bytes:
        blocks = array[:, list(block_ids)].movedim(0, 2).to("cpu", torch.uint8)
        return bytes(blocks.reshape(-1).tolist())
