"""Makes allocators of both devices, and tables on them."""

from typing import Any

import pytest

from warmpath.lab.simworker.v0.blocks.block_table import BlockTable
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator

SIZE = 4
types = pytest.mark.parametrize("allocator_type", ["naive", "prefix_caching"])


def make(
    allocator_type: str, gpu: int = 20, cpu: int = 10, size: int = SIZE
) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(allocator_type, gpu, cpu, size)


def table_of(allocator: CpuGpuBlockAllocator, tokens: int, **options: Any) -> BlockTable:
    table = BlockTable(SIZE, allocator, **options)
    table.allocate(list(range(tokens)))
    return table
