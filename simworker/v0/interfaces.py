"""What the scheduler asks of a block manager.

Source: `vllm/core/interfaces.py` of 0.9.2.
"""

import enum
from collections.abc import Sequence as Items
from typing import Protocol

from simworker.v0.sequence import Sequence, SequenceGroup

BlockPairs = list[tuple[int, int]]
"""Blocks to copy, each `(source, destination)`."""


class AllocStatus(enum.Enum):
    """Whether a group's blocks can be had."""

    OK = enum.auto()
    LATER = enum.auto()
    """Not now, for others hold what it needs."""
    NEVER = enum.auto()
    """Not even if everything were free."""


class BlockSpaceManager(Protocol):
    """Which blocks hold which sequence, on two devices: the GPU, and the CPU to swap to."""

    def can_allocate(self, seq_group: SequenceGroup, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether a waiting group's tokens fit on the GPU."""

    def allocate(self, seq_group: SequenceGroup) -> None:
        """Give a waiting group its blocks, one table shared by its sequences."""

    def can_append_slots(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> bool:
        """Whether each running sequence of a group can get slots for its newest tokens."""

    def append_slots(self, seq: Sequence, num_lookahead_slots: int) -> BlockPairs:
        """Give slots for a sequence's newest tokens; return the copies on write."""

    def fork(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Let a child share all of its parent's blocks."""

    def can_swap_in(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> AllocStatus:
        """Whether a swapped group fits on the GPU."""

    def swap_in(self, seq_group: SequenceGroup) -> BlockPairs:
        """Move a group to the GPU; return (CPU block, GPU block) pairs."""

    def can_swap_out(self, seq_group: SequenceGroup) -> bool:
        """Whether a running group fits on the CPU."""

    def swap_out(self, seq_group: SequenceGroup) -> BlockPairs:
        """Move a group to the CPU; return (GPU block, CPU block) pairs."""

    def free(self, seq: Sequence) -> None:
        """Take a sequence's blocks back, on whichever device; nothing without any."""

    def get_block_table(self, seq: Sequence) -> list[int]:
        """Return a sequence's blocks, in order, as positions within the device."""

    def get_num_free_gpu_blocks(self) -> int:
        """Blocks that could be allocated on the GPU."""

    def get_num_free_cpu_blocks(self) -> int:
        """Blocks that could be allocated on the CPU."""

    def access_all_blocks_in_seq(self, seq: Sequence, now: float) -> None:
        """Note when a sequence's blocks were last read, seconds."""

    def get_common_computed_block_ids(self, seqs: list[Sequence]) -> Items[int]:
        """Return the blocks at the beginning of all sequences whose content is there already."""

    def mark_blocks_as_computed(self, seq_group: SequenceGroup, token_chunk_size: int) -> None:
        """Let full blocks of a group be found by others from now on."""

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a sequence whose blocks are in the prefix cache; 0 without one."""

    def remove_seq_from_computed_blocks_tracker(self, seq: Sequence) -> None:
        """Forget what was looked up for a sequence that is not allocated after all."""
