"""The block table: one sequence's blocks, in order.

Source: `vllm/core/block/block_table.py` of 0.9.2.
"""

from itertools import pairwise

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import Block, BlockId, NullBlock
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from warmpath.lab.simworker.v0.device import Device


class BlockTable:
    """A sequence's blocks: filled ones, one being filled, and empty ones for lookahead.

    Lookahead slots are reserved and hold no tokens of the sequence: a worker may write ahead into them.

    `max_block_sliding_window` is the number of blocks that a sliding window needs; earlier ones are
    dropped, and the null block takes their place. None keeps all.
    """

    def __init__(
        self,
        block_size: int,
        block_allocator: CpuGpuBlockAllocator,
        _blocks: list[Block] | None = None,
        max_block_sliding_window: int | None = None,
    ) -> None:
        self._block_size = block_size
        self._allocator = block_allocator
        self._blocks = list(_blocks or ())
        self._max_block_sliding_window = max_block_sliding_window
        self._num_full_slots = len(self._get_all_token_ids())

    @staticmethod
    def get_num_required_blocks(
        token_ids: list[int], block_size: int, num_lookahead_slots: int = 0
    ) -> int:
        """Return the number of blocks for these tokens and slots, if none is shared."""
        return -(-(len(token_ids) + num_lookahead_slots) // block_size)

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in order; read only."""
        return self._blocks

    @property
    def num_full_slots(self) -> int:
        """Tokens held, those in dropped blocks included."""
        return self._num_full_slots

    @property
    def physical_block_ids(self) -> list[BlockId]:
        ids = []
        for block in self._blocks:
            assert block.block_id is not None
            ids.append(block.block_id)
        return ids

    def allocate(
        self, token_ids: list[int], device: Device = Device.GPU, extra_hash: int | None = None
    ) -> None:
        """Get blocks for a sequence's first tokens. Raises NoFreeBlocksError, and then holds none."""
        size = self._block_size
        whole = len(token_ids) - len(token_ids) % size
        blocks = self._allocator.allocate_immutable_blocks(
            None,
            [token_ids[at : at + size] for at in range(0, whole, size)],
            device=device,
            extra_hash=extra_hash,
        )
        if whole < len(token_ids):
            try:
                tail = self._allocator.allocate_mutable_block(
                    blocks[-1] if blocks else None, device=device, extra_hash=extra_hash
                )
            except ValueError:
                for block in blocks:
                    self._allocator.free(block)
                raise
            tail.append_token_ids(token_ids[whole:])
            blocks.append(tail)
        self._blocks = blocks
        self._num_full_slots = len(token_ids)

    def append_token_ids(
        self,
        token_ids: list[int],
        num_lookahead_slots: int = 0,
        num_computed_slots: int | None = None,
        extra_hash: int | None = None,
    ) -> None:
        """Fill slots with a sequence's next tokens, and reserve lookahead slots behind.

        A sliding window ends at `num_computed_slots`, the tokens computed so far. Raises
        NoFreeBlocksError; no token is appended then, unless a copy on write found no block.
        """
        if self._max_block_sliding_window is not None:
            assert num_computed_slots is not None
            self._drop_blocks(
                num_computed_slots // self._block_size - self._max_block_sliding_window
            )
        self.ensure_num_empty_slots(len(token_ids) + num_lookahead_slots, extra_hash)
        begin = 0
        while begin < len(token_ids):
            at, filled = divmod(self._num_full_slots, self._block_size)
            chunk = token_ids[begin : begin + self._block_size - filled]
            self._blocks[at].append_token_ids(chunk)
            self._num_full_slots += len(chunk)
            begin += len(chunk)

    def _drop_blocks(self, end: int) -> None:
        null_block = self._allocator.allocate_or_get_null_block()
        for at in range(end):
            if self._blocks[at] is not null_block:
                self._allocator.free(self._blocks[at])
                self._blocks[at] = null_block

    def ensure_num_empty_slots(self, num_empty_slots: int, extra_hash: int | None = None) -> None:
        """Reserve GPU blocks until `num_empty_slots` slots are empty. Raises NoFreeBlocksError."""
        while len(self._blocks) * self._block_size - self._num_full_slots < num_empty_slots:
            self._blocks.append(
                self._allocator.allocate_mutable_block(
                    self._blocks[-1], device=Device.GPU, extra_hash=extra_hash
                )
            )

    def fork(self) -> "BlockTable":
        """Return a table of the same blocks, dropped ones included, with views of its own."""
        shared = self._allocator.fork(self._blocks[-1])
        dropped = self._blocks[: len(self._blocks) - len(shared)]
        table = BlockTable(
            self._block_size, self._allocator, [*dropped, *shared], self._max_block_sliding_window
        )
        table._num_full_slots = self._num_full_slots
        return table

    def free(self) -> None:
        """Give all blocks back, first to last."""
        for block in self._blocks:
            self._allocator.free(block)
        self._blocks = []
        self._num_full_slots = 0

    def get_unseen_token_ids(self, sequence_token_ids: list[int]) -> list[int]:
        """Return the tokens of a sequence that the table does not hold yet."""
        return sequence_token_ids[self._num_full_slots :]

    def get_num_blocks_touched_by_append_slots(
        self, token_ids: list[int], num_lookahead_slots: int
    ) -> int:
        """Return how many blocks appending writes to; at most that many free blocks are needed."""
        num_new = len(token_ids) + num_lookahead_slots
        room = self._block_size - self._num_full_slots % self._block_size
        return 1 - (room - num_new) // self._block_size

    def _get_all_token_ids(self) -> list[int]:
        return [token_id for block in self._blocks for token_id in block.token_ids]

    def check(self) -> None:
        """Raise BrokenInvariantError if the blocks do not hold consecutive tokens."""
        dropped = sum(isinstance(block, NullBlock) for block in self._blocks)
        held = self._blocks[dropped:]
        if any(after.prev_block is not before for before, after in pairwise(held)):
            raise BrokenInvariantError("a block does not follow the one before it in the table")
        if any(isinstance(block, NullBlock) for block in held):
            raise BrokenInvariantError("a block is dropped behind one that is held")
        tokens = len(self._get_all_token_ids()) + dropped * self._block_size
        if tokens != self._num_full_slots:
            raise BrokenInvariantError(f"{tokens} tokens held, {self._num_full_slots} counted")
        for at, block in enumerate(held, dropped):
            expected = min(max(self._num_full_slots - at * self._block_size, 0), self._block_size)
            if len(block.token_ids) != expected:
                raise BrokenInvariantError(f"block {at} holds {len(block.token_ids)} tokens")
