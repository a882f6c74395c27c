"""A block of KV cache, and blocks of one request as the manager hands them out.

Source: `KVCacheBlock` in `vllm/v1/core/kv_cache_utils.py` of 0.32, and `KVCacheBlocks` in
`kv_cache_manager.py` there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, overload

from warmpath.lab.simworker.v1.hashing.block_hash import BlockHashWithGroupId


class KVCacheBlock:
    """One block id's state. Blocks are compared by identity."""

    __slots__ = (
        "block_hash", "block_hash_num_tokens", "block_id", "is_null", "next_free_block",
        "prev_free_block", "ref_cnt",
    )  # fmt: skip

    def __init__(self, block_id: int, ref_cnt: int = 0, *, is_null: bool = False) -> None:
        self.block_id = block_id
        self.ref_cnt = ref_cnt
        """Number of requests that hold it; with 0 it is free. Not counted for the null block."""
        self.block_hash: BlockHashWithGroupId | None = None
        """Its key while it is cached, else None. A free block keeps it until it gets new content."""
        self.block_hash_num_tokens: int | None = None
        """Number of tokens that the hash covers, from the request's first on."""
        self.is_null = is_null
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None

    def set_block_hash(
        self, block_hash: BlockHashWithGroupId, num_tokens: int | None = None
    ) -> None:
        """Set the hash of the block's content. Raises ValueError if it has one already."""
        if self.block_hash is not None:
            raise ValueError(f"block {self.block_id} has a hash already")
        self.block_hash = block_hash
        self.block_hash_num_tokens = num_tokens

    def reset_hash(self) -> None:
        self.block_hash = None
        self.block_hash_num_tokens = None

    def __repr__(self) -> str:
        before, after = (
            None if block is None else block.block_id
            for block in (self.prev_free_block, self.next_free_block)
        )
        return (
            f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, "
            f"block_hash={self.block_hash!r}, between={before} and {after})"
        )


@dataclass(slots=True)
class KVCacheBlocks:
    """`blocks[i][j]` is the j-th block of group i."""

    blocks: Sequence[Sequence[KVCacheBlock]]

    def __add__(self, other: "KVCacheBlocks") -> "KVCacheBlocks":
        return KVCacheBlocks(
            tuple(
                list(chain(ours, theirs))
                for ours, theirs in zip(self.blocks, other.blocks, strict=True)
            )
        )

    @overload
    def get_block_ids(
        self, allow_none: Literal[False] = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...]: ...
    @overload
    def get_block_ids(
        self, allow_none: bool, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None: ...

    def get_block_ids(
        self,
        allow_none: bool = False,
        *,
        group_ids: Sequence[int] | None = None,
    ) -> tuple[list[int], ...] | None:
        """Return the block ids of each group, or of each of `group_ids`.

        With `allow_none` it returns None if no group has a block.
        """
        groups = self.blocks if group_ids is None else [self.blocks[at] for at in group_ids]
        if allow_none and not any(groups):
            return None
        return tuple([block.block_id for block in group] for group in groups)
