"""The blocks of a GPU, and of the CPU's memory to which it swaps.

Source: `vllm/core/block/cpu_gpu_block_allocator.py` of 0.9.2.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, BlockId, NoFreeBlocksError, NullBlock
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import PrefixCachingBlockAllocator
from warmpath.lab.simworker.v0.device import Device


class CpuGpuBlockAllocator:
    """An allocator each for GPU and CPU; no block id occurs on both."""

    @staticmethod
    def create(
        num_gpu_blocks: int, num_cpu_blocks: int, block_size: int, *, enable_caching: bool
    ) -> "CpuGpuBlockAllocator":
        """Return allocators of one type; the GPU's ids come first."""
        kind = PrefixCachingBlockAllocator if enable_caching else NaiveBlockAllocator
        end = num_gpu_blocks + num_cpu_blocks
        return CpuGpuBlockAllocator(
            cpu_block_allocator=kind(num_cpu_blocks, block_size, range(num_gpu_blocks, end)),
            gpu_block_allocator=kind(num_gpu_blocks, block_size, range(num_gpu_blocks)),
        )

    def __init__(
        self, cpu_block_allocator: NaiveBlockAllocator, gpu_block_allocator: NaiveBlockAllocator
    ) -> None:
        self.allocators = {Device.CPU: cpu_block_allocator, Device.GPU: gpu_block_allocator}
        self._device_of = {
            block_id: device
            for device, allocator in self.allocators.items()
            for block_id in allocator.all_block_ids
        }
        self.gpu = gpu_block_allocator
        self._null_block: NullBlock | None = None

    @property
    def all_block_ids(self) -> frozenset[BlockId]:
        return frozenset(self._device_of)

    def device_of(self, block_id: BlockId) -> Device:
        return self._device_of[block_id]

    def ref_count(self, block_id: BlockId) -> int:
        """Return how many views have this id; the null block has one."""
        return self.allocators[self._device_of[block_id]].ref_count(block_id)

    def allocate_mutable_block(
        self, prev_block: Block | None, device: Device, extra_hash: int | None = None
    ) -> Block:
        """Return an empty block after `prev_block`. Raises NoFreeBlocksError."""
        return self.allocators[device].allocate_mutable_block(prev_block, extra_hash)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: list[list[int]],
        device: Device,
        extra_hash: int | None = None,
    ) -> list[Block]:
        """Return a chain of full blocks after `prev_block`. Raises NoFreeBlocksError."""
        return self.allocators[device].allocate_immutable_blocks(
            prev_block, block_token_ids, extra_hash
        )

    def allocate_or_get_null_block(self) -> Block:
        """Return the null block; the first call takes a block of the GPU for ever."""
        if self._null_block is None:
            self._null_block = NullBlock(self.allocate_mutable_block(None, Device.GPU))
        return self._null_block

    @property
    def null_block_id(self) -> BlockId | None:
        """The null block's id; None until a window has passed a block."""
        return None if self._null_block is None else self._null_block.block_id

    def free(self, block: Block) -> None:
        """Give up one use of a block; the null block is never given up."""
        if block is not self._null_block:
            self._allocator_of(block).free(block)

    def fork(self, last_block: Block) -> list[Block]:
        """Return new views of the blocks up to `last_block`, first to last, sharing their memory."""
        return self._allocator_of(last_block).fork(last_block)

    def _allocator_of(self, block: Block) -> NaiveBlockAllocator:
        assert block.block_id is not None, "the block has no memory"
        return self.allocators[self._device_of[block.block_id]]

    def get_num_free_blocks(self, device: Device) -> int:
        """Return the number of blocks that could be allocated, with or without cached content."""
        return self.allocators[device].get_num_free_blocks()

    def get_physical_block_id(self, device: Device, absolute_id: BlockId) -> int:
        """Return an id's position within its device."""
        return self.allocators[device].get_physical_block_id(absolute_id)

    def swap(
        self, blocks: list[Block], src_device: Device, dst_device: Device
    ) -> dict[BlockId, BlockId]:
        """Move one sequence's blocks; return old id to new id. The null block stays on the GPU.

        Raises NoFreeBlocksError, and then moves none.
        """
        moving = [block for block in blocks if block is not self._null_block]
        source, destination = self.allocators[src_device], self.allocators[dst_device]
        needed = destination.get_num_full_blocks_touched(moving)
        needed += sum(not block.is_full for block in moving)
        if needed > destination.get_num_free_blocks():
            raise NoFreeBlocksError(
                f"{needed} blocks needed, {destination.get_num_free_blocks()} are free"
            )
        before = [block.block_id for block in moving]
        source.swap_out(moving)
        destination.swap_in(moving)
        return {
            old: block.block_id
            for old, block in zip(before, moving, strict=True)
            if old is not None and block.block_id is not None
        }

    def mark_blocks_as_accessed(self, block_ids: Sequence[BlockId], now: float) -> None:
        """Note that blocks, each on its device, were read at `now`, in seconds.

        0.9.2 asks the GPU's allocator for all, which fails for a sequence freed while swapped out.
        """
        for device, allocator in self.allocators.items():
            allocator.mark_blocks_as_accessed(
                [block_id for block_id in block_ids if self._device_of[block_id] is device], now
            )

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forget all content; return False, and change nothing, on a device whose blocks are in use.

        Once the null block exists, one of the GPU's blocks is always in use.

        Without a device the CPU's is forgotten first, and the GPU's only if that was possible.
        """
        if device is not None:
            return self.allocators[device].reset_prefix_cache()
        return all(allocator.reset_prefix_cache() for allocator in self.allocators.values())

    def check(self) -> None:
        for allocator in self.allocators.values():
            allocator.check()
        null = self.null_block_id
        if self._null_block is not None and (null is None or self.ref_count(null) != 1):
            raise BrokenInvariantError("the null block is shared, or has no memory")
