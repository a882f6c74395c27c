"""Makes allocators of one device, and chains of full blocks on them."""

from warmpath.lab.simworker.v0.blocks.block import Block
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import (
    PrefixCachingBlockAllocator,
)

SIZE = 4


def naive(num_blocks: int, block_size: int = SIZE) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(num_blocks, block_size)


def caching(num_blocks: int, block_size: int = SIZE) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size)


def chain(allocator: NaiveBlockAllocator, tokens: list[int], size: int = SIZE) -> list[Block]:
    parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return allocator.allocate_immutable_blocks(None, parts)


def ids(blocks: list[Block]) -> list[int | None]:
    return [block.block_id for block in blocks]
