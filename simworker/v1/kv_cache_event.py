"""What happened to the cache, as the block pool tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks became cached, each the child of the one before it."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None
    extra_keys: list[list[str] | None]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A cached block was given to other content."""

    block_hash: bytes


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache was reset."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
