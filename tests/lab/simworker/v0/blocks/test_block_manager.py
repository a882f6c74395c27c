"""The block manager: what fits, what is shared, what is moved, and what 0.9.2 gets wrong there."""

from typing import Any

import pytest

from tests.lab.simworker.v0.managers import SIZE, admitted, group_of, manager_of, sample, set_status
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import BlockAllocator
from warmpath.lab.simworker.v0.blocks.block_manager import (
    STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE,
    STR_NOT_IMPL_ENC_DEC_SWA,
)
from warmpath.lab.simworker.v0.blocks.trackers import LastAccessBlocksTracker
from warmpath.lab.simworker.v0.device import AllocStatus, Device
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceStatus

caching = pytest.mark.parametrize("enable_caching", [False, True])


@pytest.mark.parametrize(
    ("watermark", "blocks", "taken", "status"),
    [
        (0.0, 10, 0, AllocStatus.OK),
        (0.0, 11, 0, AllocStatus.NEVER),
        (0.0, 8, 3, AllocStatus.LATER),
        (0.2, 8, 0, AllocStatus.OK),
        (0.2, 9, 0, AllocStatus.NEVER),
        (0.2, 6, 3, AllocStatus.LATER),
        (0.2, 5, 3, AllocStatus.OK),
    ],
)
def test_a_group_is_admitted_while_the_watermark_stays_free(
    watermark: float, blocks: int, taken: int, status: AllocStatus
) -> None:
    manager = manager_of(watermark=watermark)
    if taken:
        admitted(manager, 1, list(range(taken * SIZE)))
    # Cached blocks count like any other, and those of one table once for all its sequences.
    for count in (1, 3):
        assert manager.can_allocate(group_of(2, [7] * blocks * SIZE, count)) is status


def test_lookahead_counts_at_admission() -> None:
    manager = manager_of(gpu=2)
    group = group_of(1, [0] * 7)
    assert [manager.can_allocate(group, ahead) for ahead in (0, 1, 2)] == [
        AllocStatus.OK, AllocStatus.OK, AllocStatus.NEVER,
    ]  # fmt: skip


def test_a_window_bounds_what_admission_counts() -> None:
    manager = manager_of(gpu=5, sliding_window=8)
    assert manager.max_block_sliding_window == 4
    group = group_of(1, [0] * 40)
    assert manager.can_allocate(group) is AllocStatus.OK
    # The prompt is allocated whole, however.
    with pytest.raises(BlockAllocator.NoFreeBlocksError):
        manager.allocate(group)
    assert manager.get_num_free_gpu_blocks() == 5
    manager.check()


@caching
def test_all_sequences_of_a_group_share_one_table(enable_caching: bool) -> None:
    manager = manager_of(enable_caching=enable_caching)
    group = admitted(manager, 1, list(range(6)), count=3)
    tables = [manager.get_block_table(seq) for seq in group.seqs]
    assert tables == [[0, 1]] * 3
    assert manager.get_num_free_gpu_blocks() == 8
    for seq in group.seqs:
        sample(seq, seq.seq_id)
    assert [manager.append_slots(seq, 0) for seq in group.seqs] == [[(1, 2)], [(1, 3)], []]
    manager.check()


@caching
def test_slots_are_appended_only_where_the_worst_case_fits(enable_caching: bool) -> None:
    manager = manager_of(gpu=4, enable_caching=enable_caching)
    group = admitted(manager, 1, list(range(6)), count=2)
    for seq in group.seqs:
        sample(seq, 1)
    assert manager.can_append_slots(group, 0)
    assert manager.can_append_slots(group, 1)
    assert not manager.can_append_slots(group, 2)


@caching
def test_a_sequence_freed_gives_back_what_nobody_shares(enable_caching: bool) -> None:
    manager = manager_of(enable_caching=enable_caching)
    group = admitted(manager, 1, list(range(8)))
    parent = group.seqs[0]
    child = parent.fork(2)
    manager.fork(parent, child)
    sample(child, 5)
    manager.append_slots(child, 0)
    manager.free(parent)
    assert manager.get_num_free_gpu_blocks() == 7
    manager.free(parent)
    manager.free(child)
    assert manager.get_num_free_gpu_blocks() == 10
    manager.check()


def test_a_fork_of_what_has_no_blocks_has_none() -> None:
    manager = manager_of()
    group = group_of(1, [1])
    manager.fork(group.seqs[0], group.seqs[0].fork(2))
    assert manager.block_tables == {}


def test_blocks_are_given_once() -> None:
    manager = manager_of()
    group = admitted(manager, 1, [1, 2])
    with pytest.raises(ValueError, match="child_seq: sequence 10 has blocks already"):
        manager.fork(group.seqs[0], group.seqs[0])
    set_status(group, SequenceStatus.WAITING)
    with pytest.raises(ValueError, match="seq_group: sequence 10 has blocks already"):
        manager.allocate(group)
    with pytest.raises(ValueError, match="watermark: -1"):
        manager_of(watermark=-1)


def test_cached_tokens_are_whole_blocks_that_were_computed() -> None:
    manager = manager_of(enable_caching=True)
    group = admitted(manager, 1, list(range(10)))
    again = group_of(2, list(range(10)))
    assert manager.get_num_cached_tokens(again.seqs[0]) == 8
    manager.allocate(again)
    assert manager.get_common_computed_block_ids(again.seqs) == [0, 1]
    assert manager.get_common_computed_block_ids([*again.seqs, *group.seqs]) == [0, 1]
    other = group_of(3, [0, 1, 2, 3, 9, 9])
    assert manager.get_num_cached_tokens(other.seqs[0]) == 4
    assert manager.get_prefix_cache_hit_rate(Device.GPU) == 0.5
    assert manager_of().get_num_cached_tokens(other.seqs[0]) == 0


def test_in_prefill_the_first_count_of_cached_tokens_stands() -> None:
    manager = manager_of(enable_caching=True)
    group = group_of(1, list(range(8)))
    [seq] = group.seqs
    assert manager.get_num_cached_tokens(seq) == 0
    manager.allocate(group)
    manager.mark_blocks_as_computed(group, 4)
    assert manager.get_num_cached_tokens(seq) == 0
    # 0.9.2 takes the whole prompt for computed after its first chunk; another prompt shows it.
    assert manager.get_num_cached_tokens(group_of(2, list(range(8))).seqs[0]) == 8
    seq.data.update_num_computed_tokens(8)
    assert manager.get_num_cached_tokens(seq) == 8
    sample(seq, 1, 2, 3, 4)
    assert manager.get_num_cached_tokens(seq) == 8
    manager.append_slots(seq, 0)
    manager.mark_blocks_as_computed(group, 1)
    assert manager.get_num_cached_tokens(seq) == 12


def test_what_was_looked_up_is_forgotten_for_a_group_not_admitted() -> None:
    manager = manager_of(enable_caching=True)
    seq = group_of(2, list(range(8))).seqs[0]
    assert manager.get_num_cached_tokens(seq) == 0
    admitted(manager, 1, list(range(8)))
    assert manager.get_num_cached_tokens(seq) == 0
    manager.remove_seq_from_computed_blocks_tracker(seq)
    assert manager.get_num_cached_tokens(seq) == 8


def test_the_sequence_accessed_last_is_evicted_last() -> None:
    manager = manager_of(gpu=4, enable_caching=True)
    first, second = admitted(manager, 1, [1] * 8), admitted(manager, 2, [2] * 8)
    manager.access_all_blocks_in_seq(first.seqs[0], 2.0)
    manager.access_all_blocks_in_seq(second.seqs[0], 1.0)
    manager.free(first.seqs[0])
    manager.free(second.seqs[0])
    admitted(manager, 3, [3] * 8)
    seqs = [group_of(number, [token] * 8).seqs[0] for number, token in ((4, 1), (5, 2))]
    assert [manager.get_num_cached_tokens(seq) for seq in seqs] == [8, 0]


def test_a_fork_that_ends_before_it_was_looked_up_is_freed() -> None:
    manager = manager_of(enable_caching=True)
    group = admitted(manager, 1, list(range(6)))
    child = group.seqs[0].fork(2)
    manager.fork(group.seqs[0], child)
    manager.free(child)
    assert manager.get_num_free_gpu_blocks() == 8
    manager.check()


def test_a_reset_forgets_a_device_or_both() -> None:
    manager = manager_of(enable_caching=True)
    group = admitted(manager, 1, list(range(8)))
    assert not manager.reset_prefix_cache(Device.GPU)
    assert not manager.reset_prefix_cache()
    assert manager.reset_prefix_cache(Device.CPU)
    manager.free(group.seqs[0])
    assert manager.get_num_cached_tokens(group_of(2, list(range(8))).seqs[0]) == 8
    assert manager.reset_prefix_cache()
    assert manager.get_num_cached_tokens(group_of(3, list(range(8))).seqs[0]) == 0


def test_an_encoders_sequence_has_a_table_of_its_own() -> None:
    manager = manager_of(gpu=6)
    encoder = Sequence(99, {"prompt_token_ids": [5] * 9}, SIZE)
    group = group_of(1, list(range(8)), encoder_seq=encoder)
    assert manager.can_allocate(group) is AllocStatus.OK
    assert manager_of(gpu=4).can_allocate(group) is AllocStatus.NEVER
    manager.allocate(group)
    assert manager.get_cross_block_table(group) == [2, 3, 4]
    manager.check()
    manager.free(group.seqs[0])
    with pytest.raises(ValueError, match="the encoder of 'r1' has blocks already"):
        manager.allocate(group)
    manager.free_cross(group)
    manager.free_cross(group)
    assert manager.get_num_free_gpu_blocks() == 6
    with pytest.raises(BlockAllocator.NoFreeBlocksError):
        manager_of(gpu=4).allocate(group)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sliding_window": 8}, STR_NOT_IMPL_ENC_DEC_SWA),
        ({"enable_caching": True}, STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE),
    ],
)
def test_an_encoders_sequence_is_neither_cached_nor_windowed(
    options: dict[str, Any], reason: str
) -> None:
    encoder = Sequence(99, {"prompt_token_ids": [5]}, SIZE)
    group = group_of(1, [1], encoder_seq=encoder)
    with pytest.raises(NotImplementedError, match=reason):
        manager_of(**options).can_allocate(group)


def test_a_table_that_is_not_counted_is_told() -> None:
    manager = manager_of()
    admitted(manager, 1, [1] * 6)
    table = manager.block_tables.pop(10)
    with pytest.raises(BrokenInvariantError, match="block 0 is in 0 tables, but counted 1 times"):
        manager.check()
    manager.block_tables[11] = table
    with pytest.raises(BrokenInvariantError, match="knows a sequence without blocks"):
        manager.check()


def test_access_is_set_for_tracked_sequences_only() -> None:
    tracker = LastAccessBlocksTracker(manager_of().block_allocator)
    tracker.add_seq(1)
    with pytest.raises(ValueError, match="seq_id: 1 is tracked already"):
        tracker.add_seq(1)
    with pytest.raises(KeyError):
        tracker.update_last_access(2, 1.0)
    tracker.remove_seq(1)
    assert tracker.seq_ids == set()
