"""What offloading copies, and what it looks at for that."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simworker.v1.hashing.lora_request import LoRARequest

NULL_BLOCK_ID = 0


class OffloadedBlock(Protocol):
    """A block of the GPU's pool, as far as offloading looks at it."""

    @property
    def block_id(self) -> int:
        """Its place in the GPU's memory; 0 is the null block."""

    @property
    def block_hash(self) -> object:
        """None where the block's content is not registered."""


class OffloadedBlocks(Protocol):
    """A request's blocks."""

    @property
    def blocks(self) -> Sequence[Sequence[OffloadedBlock]]:
        """By group, in the order of the sequence."""


class OffloadedRequest(Protocol):
    """A request, as far as offloading looks at it."""

    @property
    def request_id(self) -> str:
        """Its name, of which there is one at a time."""

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
        """Tokens whose keys and values are computed or loaded, or being so."""

    @property
    def shared_prefix_boundary(self) -> int | None:
        """Tokens up to where another request's prompt parts from this one's, if that is known."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and generated tokens."""

    @property
    def lora_request(self) -> LoRARequest | None:
        """The adapter it uses, if any."""

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Whether nothing may be loaded for it."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block's place on either side."""

    gpu_block_id: int
    chunk_id: int
    part: int
    """Which of the chunk's blocks."""


@dataclass(frozen=True, slots=True)
class TransferJob:
    """Blocks to be copied for one request, in one direction."""

    req_id: str
    is_store: bool
    copies: tuple[BlockCopy, ...]


@dataclass(slots=True)
class OffloadingMetadata:
    """What one step does about offloading."""

    load_jobs: dict[int, TransferJob]
    store_jobs: dict[int, TransferJob]
    """Begin when the step has computed."""
    jobs_to_flush: set[int]
    """Must end before the step computes; this step's own stores may be among them."""
