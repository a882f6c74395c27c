"""The time at which each sequence was last scheduled.

Source: `LastAccessBlocksTracker` in `vllm/core/block/prefix_caching_block.py` of 0.9.2.
"""

from warmpath.lab.simworker.v0.blocks.block import BlockId
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator


class LastAccessBlocksTracker:
    """A time for each sequence; its blocks get it when they are freed.

    The evictor does not need it before, so a step writes one time a sequence, not one a block.
    """

    def __init__(self, allocator: CpuGpuBlockAllocator) -> None:
        self._allocator = allocator
        self._seq_last_access: dict[int, float | None] = {}

    @property
    def seq_ids(self) -> set[int]:
        """The tracked sequences."""
        return set(self._seq_last_access)

    def add_seq(self, seq_id: int) -> None:
        """Track a sequence. Raises ValueError if it is tracked already."""
        if seq_id in self._seq_last_access:
            raise ValueError(f"seq_id: {seq_id} is tracked already")
        self._seq_last_access[seq_id] = None

    def remove_seq(self, seq_id: int) -> None:
        """Stop tracking a sequence. Raises KeyError if it is not tracked."""
        del self._seq_last_access[seq_id]

    def update_last_access(self, seq_id: int, time: float) -> None:
        """Set the time of an access, seconds. Raises KeyError for a sequence that is not tracked."""
        if seq_id not in self._seq_last_access:
            raise KeyError(seq_id)
        self._seq_last_access[seq_id] = time

    def update_seq_blocks_last_access(self, seq_id: int, block_ids: list[BlockId]) -> None:
        """Set the time of a sequence's blocks to its own, if it has one."""
        time = self._seq_last_access[seq_id]
        if time is not None:
            self._allocator.mark_blocks_as_accessed(block_ids, time)
