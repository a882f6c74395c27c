"""The block manager, its tables and both devices' blocks: what fits, what is shared, what is moved."""

from typing import Any

import pytest

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.blocks.block_table import BlockTable
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from warmpath.lab.simworker.v0.device import AllocStatus, Device
from warmpath.lab.simworker.v0.engine import Chunk, Worker
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus

SIZE = 4
RUNNING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.SWAPPED


def manager_of(gpu: int = 10, cpu: int = 10, **options: Any) -> BlockManager:
    return BlockManager(SIZE, gpu, cpu, 0.0, **options)


def group_of(number: int, tokens: list[int], count: int = 1) -> SequenceGroup:
    seqs = [Sequence(number * 10 + at, tokens, SIZE) for at in range(count)]
    return SequenceGroup(f"r{number}", seqs, 0.0)


def set_status(group: SequenceGroup, status: SequenceStatus) -> None:
    for seq in group.seqs:
        seq.status = status


def admitted(
    manager: BlockManager, number: int, tokens: list[int], count: int = 1
) -> SequenceGroup:
    group = group_of(number, tokens, count)
    assert manager.can_allocate(group) is AllocStatus.OK
    manager.allocate(group)
    set_status(group, RUNNING)
    for seq in group.seqs:
        seq.update_num_computed_tokens(len(tokens))
    manager.mark_blocks_as_computed(group, len(tokens))
    return group


def make(gpu: int = 20, cpu: int = 10, *, caching: bool = False) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(gpu, cpu, SIZE, enable_caching=caching)


def table_of(allocator: CpuGpuBlockAllocator, tokens: int) -> BlockTable:
    table = BlockTable(SIZE, allocator)
    table.allocate(list(range(tokens)))
    return table


def test_a_window_bounds_what_admission_counts() -> None:
    manager = manager_of(gpu=5, sliding_window=8)
    assert manager.max_block_sliding_window == 4
    group = group_of(1, [0] * 40)
    assert manager.can_allocate(group) is AllocStatus.OK
    # The prompt is allocated whole, however.
    with pytest.raises(NoFreeBlocksError):
        manager.allocate(group)
    assert manager.get_num_free_gpu_blocks() == 5
    manager.check()


def test_a_fork_of_what_has_no_blocks_has_none() -> None:
    manager = manager_of()
    group = group_of(1, [1])
    manager.fork(group.seqs[0], group.seqs[0].fork(2))
    assert manager.block_tables == {}


def test_a_table_that_is_not_counted_is_told() -> None:
    manager = manager_of()
    admitted(manager, 1, [1] * 6)
    table = manager.block_tables.pop(10)
    with pytest.raises(BrokenInvariantError, match="block 0 is in 0 tables, but counted 1 times"):
        manager.check()
    manager.block_tables[11] = table
    with pytest.raises(BrokenInvariantError, match="knows a sequence without blocks"):
        manager.check()


def test_a_copy_given_up_does_not_overwrite_a_block_swapped_in() -> None:
    manager = manager_of(gpu=4, cpu=4, enable_caching=True)
    worker = Worker(CacheEngine(CacheShape(1, SIZE, 1, 4), 4, 4, NumpyBackend()))

    def chunks(*seqs: Sequence) -> list[Chunk]:
        return [
            Chunk(manager.get_block_table(seq), list(seq.get_token_ids()), range(seq.get_len()))
            for seq in seqs
        ]

    # The content [1, 2, 3, 4] is cached; a fork shares a block that holds [1, 2, 3].
    cached = admitted(manager, 1, [1, 2, 3, 4])
    away = admitted(manager, 2, [7, 7, 7])
    worker.execute_model(chunks(*cached.seqs, *away.seqs), [], [], [])
    out = manager.swap_out(away)
    set_status(away, SWAPPED)
    group = admitted(manager, 3, [1, 2, 3], count=2)
    worker.execute_model(chunks(*group.seqs), [], out, [])
    # Appending 4 copies the shared block, and gives the copy up for the cached one. The block that
    # was to be the copy is then taken for what comes back from the CPU.
    first = group.seqs[0]
    first.append_token_id(4)
    copies = manager.append_slots(first, 0)
    back = manager.swap_in(away)
    set_status(away, RUNNING)
    assert copies[0][1] == back[0][1]
    worker.execute_model(chunks(first), back, [], copies)
    table = manager.get_block_table(away.seqs[0])
    assert not list(worker.content.find_wrong(Device.GPU, table, [7, 7, 7]))
    # Swapped in first, as 0.9.2 does, it would be lost.
    worker.cache_engine.swap_in(back)
    worker.cache_engine.copy(copies)
    assert list(worker.content.find_wrong(Device.GPU, table, [7, 7, 7]))


def test_tokens_that_find_no_slot_are_not_appended() -> None:
    table = table_of(make(gpu=2), 6)
    with pytest.raises(NoFreeBlocksError):
        table.append_token_ids([1, 2, 3])
    assert table.num_full_slots == 6
    table.check()


def test_a_table_out_of_order_is_told() -> None:
    table = table_of(make(), 10)
    first, second, third = table.blocks
    table._blocks = [second, first, third]
    with pytest.raises(BrokenInvariantError, match="does not follow"):
        table.check()
    table._blocks = [first, second]
    with pytest.raises(BrokenInvariantError, match="8 tokens held, 10 counted"):
        table.check()


def test_both_devices_have_ids_of_their_own() -> None:
    allocator = make(3, 2)
    assert allocator.all_block_ids == {0, 1, 2, 3, 4}
    assert [allocator.device_of(each) for each in (2, 3)] == [Device.GPU, Device.CPU]
    assert [allocator.get_physical_block_id(Device.CPU, each) for each in (3, 4)] == [0, 1]
    assert allocator.gpu.get_num_total_blocks() == 3


def test_the_null_block_is_one_and_neither_written_moved_nor_freed() -> None:
    allocator = make(3, 2)
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


@pytest.mark.parametrize("caching", [False, True])
def test_a_swap_that_does_not_fit_moves_nothing(caching: bool) -> None:
    allocator = make(cpu=2, caching=caching)
    table = table_of(allocator, 10)
    before = table.physical_block_ids
    with pytest.raises(NoFreeBlocksError, match="3 blocks needed, 2 are free"):
        allocator.swap(table.blocks, Device.GPU, Device.CPU)
    assert table.physical_block_ids == before
    allocator.check()
