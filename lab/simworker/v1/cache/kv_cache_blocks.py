"""Blocks of one request, group by group, as the manager hands them out and takes them back.

Source: `KVCacheBlocks` in `vllm/v1/core/kv_cache_manager.py` of 0.32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, overload

from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock


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

    def get_unhashed_block_ids(self) -> list[int]:
        """Return the ids of blocks that are not cached. Raises ValueError for several groups."""
        if len(self.blocks) != 1:
            raise ValueError(f"{len(self.blocks)} groups: only one group is supported")
        return [block.block_id for block in self.blocks[0] if block.block_hash is None]

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Return the ids of blocks that are not cached, without null blocks, of each group."""
        return [
            [block.block_id for block in group if block.block_hash is None and not block.is_null]
            for group in self.blocks
        ]

    def new_empty(self) -> "KVCacheBlocks":
        """Return the same number of groups, without blocks."""
        return KVCacheBlocks(tuple(() for _ in self.blocks))
