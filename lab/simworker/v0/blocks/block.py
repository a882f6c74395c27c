"""The contracts of a block, and of the allocator that hands out one device's blocks.

Source: `vllm/core/block/interfaces.py` of 0.9.2. A block here is one sequence's view: its tokens, and
the id of the physical block that holds them. Sequences that share memory have a view each, with the
same id; reference counts are kept by id.
"""

from collections.abc import Sequence
from typing import Protocol

BlockId = int


class Block(Protocol):
    """Up to `block_size` consecutive tokens of a sequence, and the physical block that holds them."""

    @property
    def block_id(self) -> BlockId | None:
        """The physical block, which the allocator chooses; None while the block has none."""

    @block_id.setter
    def block_id(self, value: BlockId | None) -> None: ...

    @property
    def token_ids(self) -> list[int]:
        """The tokens held; read only."""

    @property
    def num_empty_slots(self) -> int:
        """Tokens that can still be appended."""

    @property
    def is_full(self) -> bool:
        """Whether no slot is empty."""

    @property
    def prev_block(self) -> "Block | None":
        """The block before this one in the sequence; None for the first."""

    @property
    def num_blocks_before(self) -> int:
        """Blocks before this one in the sequence."""

    @property
    def extra_hash(self) -> int | None:
        """A hash of whatever the content depends on besides the tokens (an adapter); None: nothing."""

    @property
    def content_hash(self) -> int | None:
        """Hash of this and all earlier tokens; None unless the block is full and can be shared."""

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Fill slots; may move the block to another id. Raises ValueError for too many tokens."""


class BlockFactory(Protocol):
    """Makes blocks of the kind an allocator hands out."""

    def __call__(
        self,
        *,
        prev_block: Block | None,
        token_ids: list[int],
        block_size: int,
        allocator: "BlockAllocator",
        block_id: BlockId | None = None,
        extra_hash: int | None = None,
    ) -> Block:
        """Return a block that holds these tokens."""


class BlockAllocator(Protocol):
    """The blocks of one device.

    A *mutable* block is one that is being filled; an *immutable* one is full and stays as it is.
    """

    class NoFreeBlocksError(ValueError):
        """Every block is in use."""

    @property
    def all_block_ids(self) -> frozenset[BlockId]:
        """All ids of the device's blocks, free ones included."""

    def allocate_mutable_block(
        self, prev_block: Block | None, extra_hash: int | None = None
    ) -> Block:
        """Return an empty block after `prev_block`. Raises NoFreeBlocksError."""

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None = None
    ) -> Block:
        """Return a full block after `prev_block`. Raises NoFreeBlocksError."""

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: list[list[int]],
        extra_hash: int | None = None,
    ) -> list[Block]:
        """Return a chain of full blocks after `prev_block`. Raises NoFreeBlocksError."""

    def free(self, block: Block) -> None:
        """Give up one use of a block; the view has no id afterwards."""

    def fork(self, last_block: Block) -> list[Block]:
        """Return new views of the blocks up to `last_block`, first to last, sharing their memory.

        They begin after the last block without an id. Raises ValueError if `last_block` has no memory.
        """

    def get_num_total_blocks(self) -> int:
        """Return the number of blocks of the device."""

    def get_num_free_blocks(self) -> int:
        """Return the number of blocks that could be allocated, with or without cached content."""

    def get_physical_block_id(self, absolute_id: BlockId) -> int:
        """Return an id's position within the device."""

    def swap_out(self, blocks: list[Block]) -> None:
        """Give up the blocks' ids; they keep their tokens."""

    def swap_in(self, blocks: list[Block]) -> None:
        """Give each block, which keeps its tokens, an id of this device. Raises NoFreeBlocksError."""

    def get_num_full_blocks_touched(self, blocks: list[Block]) -> int:
        """Return the number of free blocks needed to swap in the full blocks among `blocks`."""

    def clear_copy_on_writes(self) -> list[tuple[BlockId, BlockId]]:
        """Return (source, destination) of the copies due since the last call, in order."""

    def mark_blocks_as_accessed(self, block_ids: Sequence[BlockId], now: float) -> None:
        """Set when blocks were last read, seconds."""

    def mark_blocks_as_computed(self, block_ids: Sequence[BlockId]) -> None:
        """Count every block filled so far as computed; the ids do not matter, as in 0.9.2."""

    def get_common_computed_block_ids(
        self, computed_seq_block_ids: list[list[BlockId]]
    ) -> list[BlockId]:
        """Return the leading ids that all sequences share."""

    def find_cached_blocks_prefix(self, block_hashes: list[int]) -> list[int]:
        """Return the leading hashes whose content is cached and computed."""

    def cow_block_if_not_appendable(self, block: Block) -> BlockId:
        """Return the id to append to: a new one if another sequence uses the block, too.

        Only blocks call it.
        """

    def promote_to_immutable_block(self, block: Block) -> BlockId:
        """Cache a block that was just filled; return its id. Only blocks call it."""

    def get_prefix_cache_hit_rate(self) -> float:
        """Share of look-ups that hit, 0 to 1; -1 without a prefix cache."""

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False, and nothing done, while blocks are in use."""

    def ref_count(self, block_id: BlockId) -> int:
        """Return how many views have this id."""

    def check(self) -> None:
        """Raise BrokenInvariantError if counts, free blocks and cache contradict each other."""
