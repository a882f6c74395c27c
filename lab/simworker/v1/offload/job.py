"""Jobs of offloading, which copy blocks, and the parts of blocks and requests that offloading reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest

NULL_BLOCK_ID = 0


class OffloadedBlock(Protocol):
    """The part of a GPU block that offloading reads."""

    @property
    def block_id(self) -> int:
        """Its place in the GPU's memory; 0 is the null block."""

    @property
    def block_hash(self) -> object:
        """The key of the block's content; None if it is not cached."""


class OffloadedBlocks(Protocol):
    """The part of a request's blocks that offloading reads."""

    @property
    def blocks(self) -> Sequence[Sequence[OffloadedBlock]]:
        """The blocks of each group, in the order of the sequence."""


class OffloadedRequest(Protocol):
    """The part of a request that offloading reads."""

    @property
    def request_id(self) -> str:
        """Its id; no other request has it at the same time."""

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Digests of its full hash blocks."""

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose keys and values are, or are being, computed or loaded."""

    @property
    def shared_prefix_boundary(self) -> int | None:
        """Tokens that another request's prompt shares with this one's, if known."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and generated tokens."""

    @property
    def lora_request(self) -> LoRARequest | None:
        """Its adapter, if any."""

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Whether no block may be loaded for it."""


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
