"""The block manager: what fits, what is shared, what is moved, and what 0.9.2 gets wrong there."""

import pytest

from tests.lab.simworker.v0.managers import admitted, group_of, manager_of, set_status
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.trackers import LastAccessBlocksTracker
from warmpath.lab.simworker.v0.device import AllocStatus
from warmpath.lab.simworker.v0.requests.sequence import SequenceStatus


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
