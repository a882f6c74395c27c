"""Jobs of offloading, which copy blocks."""

from dataclasses import dataclass

NULL_BLOCK_ID = 0


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The places of one block's content on the GPU and in host memory."""

    gpu_block_id: int
    chunk_id: int
    part: int
    """The block's position within the chunk."""


@dataclass(frozen=True, slots=True)
class TransferJob:
    """Blocks to copy for one request, in one direction."""

    req_id: str
    is_store: bool
    copies: tuple[BlockCopy, ...]


@dataclass(slots=True)
class OffloadingMetadata:
    """The offloading of one step."""

    load_jobs: dict[int, TransferJob]
    store_jobs: dict[int, TransferJob]
    """Jobs that begin when the step has computed."""
    jobs_to_flush: set[int]
    """Jobs that must end before the step computes; this step's own stores may be among them."""
