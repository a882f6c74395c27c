"""The memory that holds blocks, and the copies between them.

Source: `vllm/worker/cache_engine.py` of 0.9.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from warmpath.lab.simworker.v0.device import Device
from warmpath.lab.simworker.v0.memory.array_backend import DTYPES, ArrayBackend, ArrayT


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes of a KV cache: keys and values of every head of every attention layer."""

    num_layers: int
    """Attention layers; with pipeline parallelism, those of this worker."""
    block_size: int
    num_kv_heads: int
    """Heads of keys and values; with tensor parallelism, those of this worker."""
    head_size: int
    """Elements of a head's key, and of its value."""
    dtype: str = "float16"
    """The type of an element, one of `DTYPES` (`array_backend.py`)."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_size", "num_kv_heads", "head_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, at least 1 is needed")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r}, not one of {', '.join(DTYPES)}")

    @property
    def slot_elements(self) -> int:
        """Elements that one token takes in one layer."""
        return 2 * self.num_kv_heads * self.head_size


class CacheEngine(Generic[ArrayT]):
    """A cache for each layer on the GPU, and one on the CPU.

    `gpu_cache` and `cpu_cache` are lists, by layer, of the backend's arrays; `array_backend.py` has
    their shape. A pair of blocks is `(source, destination)`, each a position within its device, as the
    block manager's `swap_in`, `swap_out` and `append_slots` return them. Pairs are copied in order, so a
    block that is the destination of one may be the source of a later one.
    """

    def __init__(
        self,
        shape: CacheShape,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        backend: ArrayBackend[ArrayT],
    ) -> None:
        self.shape = shape
        self.num_gpu_blocks = num_gpu_blocks
        self.num_cpu_blocks = num_cpu_blocks
        self.backend = backend
        self.gpu_cache = self._allocate_kv_cache(num_gpu_blocks, Device.GPU)
        self.cpu_cache = self._allocate_kv_cache(num_cpu_blocks, Device.CPU)

    def _allocate_kv_cache(self, num_blocks: int, device: Device) -> list[ArrayT]:
        one = self.shape
        shape = (2, num_blocks, one.block_size, one.num_kv_heads, one.head_size)
        return [self.backend.zeros(shape, one.dtype, device) for _ in range(one.num_layers)]

    def swap_in(self, src_to_dst: Sequence[tuple[int, int]]) -> None:
        """Copy blocks from the CPU to the GPU, in every layer. Raises ValueError for unknown ones."""
        self._copy(self.cpu_cache, self.gpu_cache, src_to_dst)

    def swap_out(self, src_to_dst: Sequence[tuple[int, int]]) -> None:
        """Copy blocks from the GPU to the CPU, in every layer. Raises ValueError for unknown ones."""
        self._copy(self.gpu_cache, self.cpu_cache, src_to_dst)

    def copy(self, src_to_dsts: Sequence[tuple[int, int]]) -> None:
        """Copy blocks within the GPU, in every layer. Raises ValueError for unknown ones."""
        self._copy(self.gpu_cache, self.gpu_cache, src_to_dsts)

    def _copy(
        self, source: list[ArrayT], destination: list[ArrayT], pairs: Sequence[tuple[int, int]]
    ) -> None:
        from_blocks, to_blocks = self._num_blocks(source), self._num_blocks(destination)
        for from_block, to_block in pairs:
            if not (0 <= from_block < from_blocks and 0 <= to_block < to_blocks):
                raise ValueError(
                    f"blocks {from_block} to {to_block}: there are {from_blocks} and {to_blocks}"
                )
        for from_layer, to_layer in zip(source, destination, strict=True):
            self.backend.copy_blocks(from_layer, to_layer, pairs)

    def _num_blocks(self, cache: list[ArrayT]) -> int:
        return self.num_gpu_blocks if cache is self.gpu_cache else self.num_cpu_blocks
