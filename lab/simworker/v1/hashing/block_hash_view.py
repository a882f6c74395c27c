"""A view of a request's hashes for a group with larger blocks.

Hashes are computed once, for the smallest block. Each covers all tokens before its end, so the hash
of a larger block is that of the last small one in it:

    tokens           0-15   16-31   32-47   48-63
    blocks of 16     A      B       C       D
    blocks of 32            B               D

Source: `BlockHashListWithBlockSize` in `vllm/v1/core/kv_cache_utils.py` of 0.32.
"""

from collections.abc import Iterator, Sequence
from typing import overload

from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash


class BlockHashListWithBlockSize(Sequence[BlockHash]):
    """A view without a copy, which shows hashes that are added to the list later."""

    def __init__(
        self, block_hashes: Sequence[BlockHash], hash_block_size: int, target_block_size: int
    ) -> None:
        if hash_block_size < 1 or target_block_size % hash_block_size:
            raise ValueError(
                f"target_block_size: {target_block_size} is not a multiple of the {hash_block_size} "
                "tokens that are hashed"
            )
        self.block_hashes = block_hashes
        self.scale_factor = target_block_size // hash_block_size

    def __len__(self) -> int:
        return len(self.block_hashes) // self.scale_factor

    @overload
    def __getitem__(self, index: int) -> BlockHash: ...
    @overload
    def __getitem__(self, index: slice) -> list[BlockHash]: ...

    def __getitem__(self, index: int | slice) -> BlockHash | list[BlockHash]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"no block {index} among {len(self)}")
        return self.block_hashes[(index + 1) * self.scale_factor - 1]

    def __iter__(self) -> Iterator[BlockHash]:
        last = self.scale_factor - 1
        return (self.block_hashes[at] for at in range(last, len(self.block_hashes), last + 1))


def resolve_block_hashes(
    block_hashes: Sequence[BlockHash], hash_block_size: int, block_size: int
) -> Sequence[BlockHash]:
    """Return the hashes of blocks of `block_size` tokens; a view of them stays as it is.

    Raises ValueError if `block_size` is not a multiple of `hash_block_size`, AssertionError for a view
    of another block size.
    """
    if block_size == hash_block_size:
        return block_hashes
    if isinstance(block_hashes, BlockHashListWithBlockSize):
        if block_hashes.scale_factor * hash_block_size != block_size:
            raise AssertionError(
                f"block_size: {block_size}, and the view's {block_hashes.scale_factor} hashes of "
                f"{hash_block_size} tokens"
            )
        return block_hashes
    return BlockHashListWithBlockSize(block_hashes, hash_block_size, block_size)
