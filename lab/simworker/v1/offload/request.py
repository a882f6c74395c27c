"""One request in offloading: its chunks' keys, its blocks, and the chunks to store.

Source: `RequestOffloadState` and `_build_store_jobs` in
`vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of 0.32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warmpath.lab.simworker.v1.offload.group import OffloadGroup, Retention
from warmpath.lab.simworker.v1.offload.pool import OffloadKey, ReqContext
from warmpath.lab.simworker.v1.offload.transfer import NULL_BLOCK_ID
from warmpath.lab.simworker.v1.requests.request import Request


@dataclass(slots=True)
class GroupState:
    """A request's chunks and blocks in one group."""

    group: OffloadGroup
    keys: list[OffloadKey] = field(default_factory=list)
    """Keys of all full chunks."""
    block_ids: list[int] = field(default_factory=list)
    """Block ids in order; 0 where the request has no block, or no longer has it."""
    next_stored: int = 0
    """Number of chunks that have been offered to the pool."""

    def storable(self, num_tokens: int) -> int:
        """Return how many leading chunks of the first `num_tokens` are full and have blocks."""
        blocks = len(self.block_ids) // self.group.blocks_per_chunk
        return min(num_tokens // self.group.chunk_size, blocks, len(self.keys))

    def blocks_of(self, chunk: int) -> Sequence[int]:
        size = self.group.blocks_per_chunk
        return self.block_ids[chunk * size : (chunk + 1) * size]

    def chunks_to_store(
        self, num_tokens: int, request: Request, retention: Retention, *, finished: bool
    ) -> Iterator[int]:
        """Yield the chunks of the first `num_tokens` tokens to offer to the pool now.

        With a window, the chunks before the prompt's end are offered from the start. The request's own
        end is known only when it has finished; chunks before it that were skipped are then looked at
        again.
        """
        end = self.storable(num_tokens)
        start = self.next_stored
        prompt_end = request.num_prompt_tokens // self.group.chunk_size
        final = end if finished else prompt_end if end <= prompt_end else None
        alignment = retention.alignment
        if (
            finished
            and end != prompt_end
            and self.group.window is not None
            and retention.interval is None
            and alignment is not None
            and not alignment % self.group.block_size
        ):
            blocks = end * self.group.blocks_per_chunk
            blocks -= blocks % (alignment // self.group.block_size)
            start = min(start, blocks // self.group.blocks_per_chunk)
        boundaries = [request.num_prompt_tokens - 1]
        if request.shared_prefix_boundary:
            boundaries.append(request.shared_prefix_boundary)
        chunks = range(start, end)
        wanted = self.group.reachable(chunks, retention, boundaries, final)
        before = self.group.reachable(chunks, retention, boundaries, prompt_end)
        for chunk in chunks:
            offered = chunk < self.next_stored and before[chunk - start]
            there = self.blocks_of(chunk)[-1] != NULL_BLOCK_ID
            if there and wanted[chunk - start] and not offered:
                yield chunk


@dataclass(slots=True)
class OffloadRequest:
    """A request that has not finished, or whose transfers are under way."""

    request: Request
    groups: list[GroupState]
    context: ReqContext = field(init=False)
    num_local_tokens: int = 0
    """Tokens cached on the GPU when it was last looked up."""
    jobs: set[int] = field(default_factory=set)
    """Jobs under way: one load, or stores."""
    final_tokens: int | None = None
    """Number of tokens whose content is final; None until the request has finished."""
    signaled: bool = False
    """Whether the pool knows that the request has finished."""

    def __post_init__(self) -> None:
        self.context = ReqContext(self.request.request_id)

    def update_keys(self) -> None:
        """Make the keys of chunks that have become full."""
        hashes = self.request.block_hashes
        for part in self.groups:
            every = part.group.hashes_per_chunk
            for end in range((len(part.keys) + 1) * every, len(hashes) + 1, every):
                key = OffloadKey(hashes[end - 1], part.group.group_idx)
                part.keys.append(key)
                self.context.positions[key] = len(part.keys) * part.group.chunk_size

    def add_blocks(self, new_block_ids: Sequence[Sequence[int]], *, resumed: bool) -> None:
        """Add allocated blocks, group by group; with `resumed` they replace all earlier ones."""
        for part in self.groups:
            if resumed:
                part.block_ids.clear()
            part.block_ids.extend(new_block_ids[part.group.group_idx])
