"""The block manager: what fits, what is shared, what is moved, and what 0.9.2 gets wrong there."""

from typing import Any

import pytest

from tests.lab.simworker.v0.managers import SIZE, admitted, group_of, manager_of, set_status
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import BlockAllocator
from warmpath.lab.simworker.v0.blocks.block_manager import (
    STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE,
    STR_NOT_IMPL_ENC_DEC_SWA,
)
from warmpath.lab.simworker.v0.blocks.trackers import LastAccessBlocksTracker
from warmpath.lab.simworker.v0.device import AllocStatus
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceStatus


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
