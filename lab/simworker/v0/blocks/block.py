"""A block: one sequence's view of the memory that holds some of its tokens.

A block has the tokens, and the id of the physical block that holds them. Sequences that share memory
have a view each, with the same id; reference counts are kept by id.

Source: `vllm/core/block/interfaces.py` and `NaiveBlock` in `vllm/core/block/naive_block.py` of 0.9.2,
without its pool of reused block objects: Python makes new ones as fast as it resets old ones.

Source of the null block: `NullBlock` in `vllm/core/block/cpu_gpu_block_allocator.py` of 0.9.2.
"""

from typing import Protocol

BlockId = int


class NoFreeBlocksError(ValueError):
    """Every block is in use."""


class Appending(Protocol):
    """The part of an allocator that blocks call."""

    def cow_block_if_not_appendable(self, block: "Block") -> BlockId:
        """Return the id to append to: a new one if another sequence uses the block, too."""

    def promote_to_immutable_block(self, block: "Block") -> BlockId:
        """Cache a block that was just filled; return its id."""


class Block:
    """Up to `block_size` consecutive tokens of a sequence, without a content hash.

    `extra_hash` covers whatever the content depends on besides the tokens (an adapter); None: nothing.
    """

    def __init__(  # noqa: PLR0917 - the engine's order of arguments
        self,
        prev_block: "Block | None",
        token_ids: list[int],
        block_size: int,
        allocator: Appending,
        block_id: BlockId | None = None,
        extra_hash: int | None = None,
    ) -> None:
        self.block_id = block_id
        """The physical block, which the allocator chooses; None while the block has none."""
        self.block_size = block_size
        self.prev_block = prev_block
        self.num_blocks_before: int = 0 if prev_block is None else prev_block.num_blocks_before + 1
        self.token_ids = list(token_ids)
        self.extra_hash = extra_hash
        self.allocator = allocator

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Fill slots; if another view shares the block, move to a block of its own first.

        Raises ValueError for too many tokens.
        """
        if len(token_ids) > self.num_empty_slots:
            raise ValueError(f"token_ids: {len(token_ids)} for {self.num_empty_slots} empty slots")
        if not token_ids:
            return
        if self.block_id is not None:
            self.block_id = self.allocator.cow_block_if_not_appendable(self)
        self.token_ids.extend(token_ids)

    @property
    def num_empty_slots(self) -> int:
        return self.block_size - len(self.token_ids)

    @property
    def is_full(self) -> bool:
        return len(self.token_ids) == self.block_size

    @property
    def content_hash(self) -> int | None:
        """Hash of this and all earlier tokens; None unless the block is full and can be shared."""
        return None


class NullBlock(Block):
    """An ordinary block that no sequence writes or reads, so that tables keep their positions."""

    def __init__(self, proxy: Block) -> None:
        super().__init__(None, [], proxy.block_size, proxy.allocator, proxy.block_id)

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Raise ValueError: the null block holds no tokens."""
        raise ValueError(f"token_ids: {len(token_ids)} for the null block")
