"""The block manager: a block table for each sequence.

Source: `SelfAttnBlockSpaceManager` in `vllm/core/block_manager.py` of 0.9.2.
"""

from collections import Counter

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, BlockId
from warmpath.lab.simworker.v0.blocks.block_table import BlockTable
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from warmpath.lab.simworker.v0.blocks.trackers import ComputedBlocksTracker, LastAccessBlocksTracker
from warmpath.lab.simworker.v0.device import AllocStatus, BlockPairs, Device
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus


class BlockManager:
    """A block table for each sequence, over the blocks of a GPU and of the CPU.

    `watermark` is the share of the GPU's blocks that stays free when sequences are admitted, so that
    running ones can grow. `sliding_window` is in tokens. With `enable_caching` equal prefixes share
    memory. A step's tables are valid only after its swaps out, its copies and its swaps in have been
    executed, in this order, before the forward pass.
    """

    def __init__(  # noqa: PLR0917 - the engine's order of arguments
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        watermark: float = 0.01,
        sliding_window: int | None = None,
        enable_caching: bool = False,
    ) -> None:
        self.block_size = block_size
        self.num_total_gpu_blocks = num_gpu_blocks
        self.sliding_window = sliding_window
        self.max_block_sliding_window = None
        if sliding_window is not None:
            # One more for the division's remainder, and one more because the window may cover only a
            # part of its first and of its last block.
            self.max_block_sliding_window = sliding_window // block_size + 2
        self.watermark = watermark
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.enable_caching = enable_caching
        self.block_allocator = CpuGpuBlockAllocator.create(
            num_gpu_blocks, num_cpu_blocks, block_size, enable_caching=enable_caching
        )
        self.block_tables: dict[int, BlockTable] = {}
        """Sequence id -> block table."""
        self._computed_blocks_tracker = ComputedBlocksTracker(
            self.block_allocator, block_size, enable_caching
        )
        self._last_access_blocks_tracker = LastAccessBlocksTracker(self.block_allocator)

    def can_allocate(self, seq_group: SequenceGroup, num_lookahead_slots: int = 0) -> AllocStatus:
        """Whether a waiting group's tokens fit on the GPU and leave the watermark free.

        Counts every block as new, cached or not. NEVER if they would not fit into an empty GPU.
        """
        seq = seq_group.get_seqs(status=SequenceStatus.WAITING)[0]
        needed = BlockTable.get_num_required_blocks(
            seq.get_token_ids(), self.block_size, num_lookahead_slots
        )
        if self.max_block_sliding_window is not None:
            needed = min(needed, self.max_block_sliding_window)
        if self.num_total_gpu_blocks - needed < self.watermark_blocks:
            return AllocStatus.NEVER
        if self.get_num_free_gpu_blocks() - needed >= self.watermark_blocks:
            return AllocStatus.OK
        return AllocStatus.LATER

    def allocate(self, seq_group: SequenceGroup) -> None:
        """Give a waiting group its blocks: one table, which its other sequences fork.

        Raises NoFreeBlocksError, and then changes nothing.
        """
        first, *others = seq_group.get_seqs(status=SequenceStatus.WAITING)
        table = BlockTable(
            self.block_size,
            self.block_allocator,
            max_block_sliding_window=self.max_block_sliding_window,
        )
        if first.get_token_ids():
            table.allocate(first.get_token_ids(), extra_hash=first.extra_hash())
        self.block_tables[first.seq_id] = table
        self._last_access_blocks_tracker.add_seq(first.seq_id)
        for seq in others:
            self.fork(first, seq)

    def can_append_slots(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> bool:
        """Whether each running sequence of a group can get slots for its newest tokens.

        Assumes the worst case: every block that is written to is a new one or a copy.
        """
        touched = sum(
            self._num_blocks_touched(seq, num_lookahead_slots)
            for seq in seq_group.get_seqs(status=SequenceStatus.RUNNING)
        )
        return touched <= self.get_num_free_gpu_blocks()

    def _num_blocks_touched(self, seq: Sequence, num_lookahead_slots: int) -> int:
        table = self.block_tables[seq.seq_id]
        return table.get_num_blocks_touched_by_append_slots(
            table.get_unseen_token_ids(seq.get_token_ids()), num_lookahead_slots
        )

    def append_slots(self, seq: Sequence, num_lookahead_slots: int) -> BlockPairs:
        """Add slots for a sequence's newest tokens and `num_lookahead_slots` more.

        Return all copies due on the GPU since the last call, as (source, destination). Raises
        NoFreeBlocksError.
        """
        table = self.block_tables[seq.seq_id]
        table.append_token_ids(
            table.get_unseen_token_ids(seq.get_token_ids()),
            num_lookahead_slots,
            seq.get_num_computed_tokens(),
            seq.extra_hash(),
        )
        return self.block_allocator.gpu.clear_copy_on_writes()

    def fork(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Let a child share all of its parent's blocks, if the parent has any."""
        if parent_seq.seq_id not in self.block_tables:
            return
        self.block_tables[child_seq.seq_id] = self.block_tables[parent_seq.seq_id].fork()
        self._last_access_blocks_tracker.add_seq(child_seq.seq_id)

    def free(self, seq: Sequence) -> None:
        """Take a sequence's blocks back from the device that holds them, if it has any."""
        table = self.block_tables.pop(seq.seq_id, None)
        if table is None:
            return
        self._last_access_blocks_tracker.update_seq_blocks_last_access(
            seq.seq_id, table.physical_block_ids
        )
        self._last_access_blocks_tracker.remove_seq(seq.seq_id)
        self._computed_blocks_tracker.remove_seq(seq.seq_id)
        table.free()

    def get_block_table(self, seq: Sequence) -> list[BlockId]:
        """Return the ids of a sequence's blocks, in order; ids on the GPU are positions too."""
        return self.block_tables[seq.seq_id].physical_block_ids

    def can_swap_in(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> AllocStatus:
        """Whether a swapped group fits on the GPU, leaves the watermark free and can append."""
        return self._can_swap(seq_group, Device.GPU, SequenceStatus.SWAPPED, num_lookahead_slots)

    def can_swap_out(self, seq_group: SequenceGroup) -> bool:
        """Whether a running group fits on the CPU. Empty lookahead blocks are not counted."""
        status = self._can_swap(seq_group, Device.CPU, SequenceStatus.RUNNING, 0)
        return status is AllocStatus.OK

    def _can_swap(
        self,
        seq_group: SequenceGroup,
        device: Device,
        status: SequenceStatus,
        num_lookahead_slots: int,
    ) -> AllocStatus:
        needed = 0
        blocks: list[Block] = []
        for seq in seq_group.get_seqs(status=status):
            needed += self._num_blocks_touched(seq, num_lookahead_slots)
            blocks += self.block_tables[seq.seq_id].blocks
        needed += self.block_allocator.allocators[device].get_num_full_blocks_touched(blocks)
        watermark_blocks = self.watermark_blocks if device is Device.GPU else 0
        if self.block_allocator.allocators[device].get_num_total_blocks() < needed:
            return AllocStatus.NEVER
        if self.block_allocator.get_num_free_blocks(device) - needed >= watermark_blocks:
            return AllocStatus.OK
        return AllocStatus.LATER

    def swap_in(self, seq_group: SequenceGroup) -> BlockPairs:
        """Move a swapped group to the GPU; return (CPU, GPU) positions, sequence by sequence."""
        return self._swap(seq_group, SequenceStatus.SWAPPED, Device.CPU, Device.GPU)

    def swap_out(self, seq_group: SequenceGroup) -> BlockPairs:
        """Move a running group to the CPU; return (GPU, CPU) positions, sequence by sequence."""
        return self._swap(seq_group, SequenceStatus.RUNNING, Device.GPU, Device.CPU)

    def _swap(
        self, seq_group: SequenceGroup, status: SequenceStatus, source: Device, destination: Device
    ) -> BlockPairs:
        pairs: BlockPairs = []
        position = self.block_allocator.get_physical_block_id
        for seq in seq_group.get_seqs(status=status):
            moved = self.block_allocator.swap(
                self.block_tables[seq.seq_id].blocks, source, destination
            )
            pairs += [
                (position(source, old), position(destination, new)) for old, new in moved.items()
            ]
        return pairs

    def get_num_free_gpu_blocks(self) -> int:
        """Return the number of GPU blocks that could be allocated, with or without cached content."""
        return self.block_allocator.get_num_free_blocks(Device.GPU)

    def get_num_free_cpu_blocks(self) -> int:
        return self.block_allocator.get_num_free_blocks(Device.CPU)

    def access_all_blocks_in_seq(self, seq: Sequence, now: float) -> None:
        """Note that a sequence's blocks were read at `now`, seconds, for eviction once they are free."""
        if self.enable_caching:
            self._last_access_blocks_tracker.update_last_access(seq.seq_id, now)

    def mark_blocks_as_computed(
        self,
        seq_group: SequenceGroup,  # noqa: ARG002 - the engine's interface; 0.9.2 marks all groups'
        token_chunk_size: int,  # noqa: ARG002 - likewise
    ) -> None:
        """Count every block filled so far as computed, as is true when the next step is scheduled."""
        self.block_allocator.gpu.mark_blocks_as_computed([])

    def get_common_computed_block_ids(self, seqs: list[Sequence]) -> list[BlockId]:
        """Return the leading blocks that all sequences share and whose content is computed."""
        return self.block_allocator.gpu.get_common_computed_block_ids(
            [
                self.get_block_table(seq)[: self.get_num_cached_tokens(seq) // self.block_size]
                for seq in seqs
            ]
        )

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Return how many of a sequence's first tokens are cached; 0 without prefix caching."""
        return self._computed_blocks_tracker.get_num_cached_tokens(seq)

    def remove_seq_from_computed_blocks_tracker(self, seq: Sequence) -> None:
        """Forget the look-up for a sequence that is not allocated after all."""
        self._computed_blocks_tracker.remove_seq(seq.seq_id)

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forget all content of a device, or with None of both; False if blocks in use forbid it."""
        return self.block_allocator.reset_prefix_cache(device)

    def check(self) -> None:
        self.block_allocator.check()
        null = self.block_allocator.null_block_id
        views: Counter[BlockId] = Counter()
        for table in self.block_tables.values():
            table.check()
            ids = [block_id for block_id in table.physical_block_ids if block_id != null]
            if len({self.block_allocator.device_of(block_id) for block_id in ids}) > 1:
                raise BrokenInvariantError("a sequence is on two devices")
            views.update(ids)
        if null is not None:
            views[null] = 1
        for block_id in self.block_allocator.all_block_ids:
            if self.block_allocator.ref_count(block_id) != views[block_id]:
                raise BrokenInvariantError(
                    f"block {block_id} is in {views[block_id]} tables, but counted "
                    f"{self.block_allocator.ref_count(block_id)} times"
                )
        if self._last_access_blocks_tracker.seq_ids != set(self.block_tables):
            raise BrokenInvariantError("a tracker knows a sequence without blocks")
