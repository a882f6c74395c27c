"""Both devices' blocks under one roof."""

from typing import Any

import pytest

from tests.lab.simworker.v0.tables import SIZE, make, table_of, types
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.device import Device


def test_both_devices_have_ids_of_their_own() -> None:
    allocator = make("naive", 3, 2)
    assert allocator.all_block_ids == {0, 1, 2, 3, 4}
    assert [allocator.device_of(each) for each in (2, 3)] == [Device.GPU, Device.CPU]
    assert [allocator.get_physical_block_id(Device.CPU, each) for each in (3, 4)] == [0, 1]
    assert allocator.gpu.get_num_total_blocks() == 3
    shared = (
        NaiveBlockAllocator(3, SIZE),
        NaiveBlockAllocator(2, SIZE, [2, 3]),
    )
    with pytest.raises(ValueError, match="shares ids with the GPU's, such as 2"):
        CpuGpuBlockAllocator(*shared)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("radix", 1, 1, 1), "allocator_type: 'radix'"),
        (("naive", -1, 1, 1), "num_gpu_blocks: -1"),
        (("naive", 1, -1, 1), "num_cpu_blocks: -1"),
        (("naive", 1, 1, 0), "block_size: 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CpuGpuBlockAllocator.create(*arguments)


def test_the_null_block_is_one_and_neither_written_moved_nor_freed() -> None:
    allocator = make("naive", 3, 2)
    null = allocator.allocate_or_get_null_block()
    assert allocator.allocate_or_get_null_block() is null
    with pytest.raises(ValueError, match="null block"):
        null.append_token_ids([1])
    allocator.free(null)
    assert allocator.swap([null], Device.GPU, Device.CPU) == {}
    assert (null.block_id, allocator.get_num_free_blocks(Device.GPU)) == (0, 2)
    assert (null.token_ids, null.num_empty_slots, null.is_full) == ([], SIZE, False)
    assert (null.prev_block, null.extra_hash, null.content_hash) == (None, None, None)
    allocator.check()


@types
def test_a_swap_that_does_not_fit_moves_nothing(allocator_type: str) -> None:
    allocator = make(allocator_type, cpu=2)
    table = table_of(allocator, 10)
    before = table.physical_block_ids
    with pytest.raises(NoFreeBlocksError, match="3 blocks needed, 2 are free"):
        allocator.swap(table.blocks, Device.GPU, Device.CPU)
    assert table.physical_block_ids == before
    allocator.check()
