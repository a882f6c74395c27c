"""The null block: it takes the place of blocks that a sliding window has passed.

Source: `NullBlock` in `vllm/core/block/cpu_gpu_block_allocator.py` of 0.9.2.
"""

from warmpath.lab.simworker.v0.blocks.block import Block, BlockId


class NullBlock:
    """Wraps an ordinary block that no sequence writes or reads, so that tables keep their positions."""

    def __init__(self, proxy: Block) -> None:
        self._proxy = proxy

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Raise ValueError: the null block holds no tokens."""
        raise ValueError(f"token_ids: {len(token_ids)} for the null block")

    @property
    def block_id(self) -> BlockId | None:
        """The physical block, on the GPU."""
        return self._proxy.block_id

    @block_id.setter
    def block_id(self, value: BlockId | None) -> None:
        raise ValueError(f"block_id: {value} for the null block, which stays where it is")

    @property
    def token_ids(self) -> list[int]:
        """An empty list."""
        return self._proxy.token_ids

    @property
    def num_empty_slots(self) -> int:
        """The block's size; none of the slots may be filled."""
        return self._proxy.num_empty_slots

    @property
    def is_full(self) -> bool:
        """False."""
        return self._proxy.is_full

    @property
    def prev_block(self) -> Block | None:
        """None: it belongs to no sequence."""
        return None

    @property
    def num_blocks_before(self) -> int:
        """0: it belongs to no sequence."""
        return 0

    @property
    def extra_hash(self) -> int | None:
        """None."""
        return None

    @property
    def content_hash(self) -> int | None:
        """None."""
        return None
