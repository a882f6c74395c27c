"""The block manager: groups that are moved to the CPU and back."""

import pytest

from tests.lab.simworker.v0.managers import (
    RUNNING,
    SIZE,
    SWAPPED,
    admitted,
    manager_of,
    sample,
    set_status,
)
from warmpath.lab.simworker.v0.device import AllocStatus, Device
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend
from warmpath.lab.simworker.v0.requests.sequence import Sequence
from warmpath.lab.simworker.v0.worker import Chunk, Worker

caching = pytest.mark.parametrize("enable_caching", [False, True])


@caching
def test_a_group_swapped_out_and_in_keeps_its_tokens_on_other_blocks(enable_caching: bool) -> None:
    manager = manager_of(gpu=5, cpu=4, enable_caching=enable_caching)
    group = admitted(manager, 1, list(range(10)))
    [seq] = group.seqs
    sample(seq, 3)
    assert manager.can_swap_out(group)
    out = manager.swap_out(group)
    set_status(group, SWAPPED)
    assert [source for source, _ in out] == [0, 1, 2]
    assert [target for _, target in out] == [0, 1, 2]
    assert (manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()) == (5, 1)
    manager.check()
    other = admitted(manager, 2, [9] * 4)
    assert manager.can_swap_in(group, 0) is AllocStatus.OK
    back = manager.swap_in(group)
    set_status(group, RUNNING)
    assert [source for source, _ in back] == [0, 1, 2]
    assert [target for _, target in back] == manager.get_block_table(seq)
    assert not set(manager.get_block_table(seq)) & set(manager.get_block_table(other.seqs[0]))
    manager.append_slots(seq, 0)
    manager.check()


@caching
def test_swapping_out_ends_sharing_of_what_has_no_content_hash(enable_caching: bool) -> None:
    manager = manager_of(enable_caching=enable_caching)
    group = admitted(manager, 1, list(range(6)), count=2)
    pairs = manager.swap_out(group)
    full, part = (0, [0, 0]) if enable_caching else (0, [0, 2])
    assert [target for source, target in pairs if source == full] == part
    assert len({target for source, target in pairs if source == 1}) == 2
    manager.check()


def test_a_swap_needs_room_for_the_tokens_that_wait() -> None:
    manager = manager_of(gpu=1, cpu=1)
    group = admitted(manager, 1, [1, 2])
    sample(group.seqs[0], 3)
    assert manager.can_swap_out(group)
    manager.swap_out(group)
    set_status(group, SWAPPED)
    assert manager.can_swap_in(group, 1) is AllocStatus.OK
    assert manager.can_swap_in(group, 2) is AllocStatus.NEVER
    other = admitted(manager, 2, [1])
    assert manager.can_swap_in(group, 0) is AllocStatus.LATER
    assert not manager.can_swap_out(other)


def test_the_watermark_holds_for_swapping_in_only() -> None:
    manager = manager_of(gpu=5, cpu=5, watermark=0.4)
    group = admitted(manager, 1, [1] * 11)
    assert manager.can_swap_out(group)
    manager.swap_out(group)
    set_status(group, SWAPPED)
    assert manager.can_swap_in(group, 0) is AllocStatus.OK
    assert manager.can_swap_in(group, 2) is AllocStatus.LATER


def test_a_sequence_that_ends_while_swapped_out_is_freed_where_it_is() -> None:
    manager = manager_of(enable_caching=True)
    group = admitted(manager, 1, list(range(6)))
    manager.access_all_blocks_in_seq(group.seqs[0], 1.0)
    manager.swap_out(group)
    manager.free(group.seqs[0])
    assert (manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()) == (10, 10)
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
    sample(first, 4)
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
