"""The offloading of one KV cache group: the size of its chunks, and the chunks worth storing.

Source: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` and
`SlidingWindowManager.reachable_block_mask` in `vllm/v1/core/single_type_kv_cache_manager.py` of 0.32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    KVCacheGroupSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)


@dataclass(frozen=True, slots=True)
class OffloadGroup:
    """One group's sizes, in tokens unless a name says chunks."""

    group_idx: int
    block_size: int
    blocks_per_chunk: int
    hashes_per_chunk: int
    window: int | None
    """Tokens that a layer reads before the next one; None for full attention."""

    @property
    def chunk_size(self) -> int:
        return self.block_size * self.blocks_per_chunk

    @property
    def window_chunks(self) -> int | None:
        """Consecutive chunks that a hit needs at its end; None for all from the start."""
        return None if self.window is None else -(-(self.window + 1) // self.chunk_size)

    def load_window_chunks(self, num_tokens: int) -> int | None:
        """Return the number of chunks to load for a hit of `num_tokens` tokens; None for all.

        A hit need not end where a chunk ends; the last chunk then reaches beyond it, and the window
        begins one chunk earlier.
        """
        if self.window is None or self.window_chunks is None:
            return None
        beyond = -num_tokens % self.chunk_size
        return max(self.window_chunks, -(-(self.window + beyond) // self.chunk_size))

    def reachable(
        self,
        chunks: range,
        retention: "Retention",
        boundaries: Sequence[int],
        final_chunk: int | None,
    ) -> list[bool]:
        """Return for each chunk whether a later hit can need it.

        Hits are kept possible at certain positions, and each needs the window's chunks before it. The
        positions are the multiples of the alignment, or of the interval if there is one; with an
        interval also `boundaries`, in tokens, else the request's end, where chunk `final_chunk` would
        begin (None while that is not known).
        """
        everything = [True] * len(chunks)
        alignment = retention.alignment
        # If hits can end within a block, every block is needed.
        if self.window is None or alignment is None or alignment % self.block_size:
            return everything
        needed = -(-self.window // self.block_size)
        interval = alignment if retention.interval is None else retention.interval
        segment = interval // self.block_size
        if segment and needed >= segment:
            return everything
        tails = []
        if retention.interval is None and final_chunk is not None:
            final = final_chunk * self.blocks_per_chunk
            tails.append(range(max(final - final % segment, final - needed), final))
        if retention.interval is not None:
            for boundary in boundaries:
                end = boundary // alignment * alignment // self.block_size
                tails.append(range(end - needed, end))

        def is_needed(block: int) -> bool:
            if segment and block % segment >= segment - needed:
                return True
            return any(block in tail for tail in tails)

        size = self.blocks_per_chunk
        return [
            any(is_needed(block) for block in range(chunk * size, (chunk + 1) * size))
            for chunk in chunks
        ]


@dataclass(frozen=True, slots=True)
class Retention:
    """The positions at which hits are kept possible, in tokens."""

    alignment: int | None
    """Hits end at its multiples; None if they may end elsewhere."""
    interval: int | None
    """The interval of `KVCacheConfig.prefix_cache_retention_interval`; None: no interval."""


def offload_groups(
    kv_cache_groups: Sequence[KVCacheGroupSpec], hash_block_size: int, blocks_per_chunk: int
) -> tuple[OffloadGroup, ...]:
    """Return the groups' sizes.

    Raises ValueError for drafters' groups, for blocks that are not a multiple of `hash_block_size`
    tokens, and for `blocks_per_chunk` below 1.
    """
    if blocks_per_chunk < 1:
        raise ValueError(f"blocks_per_chunk: {blocks_per_chunk}, at least 1")
    groups = []
    for number, group in enumerate(kv_cache_groups):
        spec = group.kv_cache_spec
        if group.is_eagle_group:
            raise ValueError(f"kv_cache_groups: group {number} is a drafter's, not to be offloaded")
        if spec.block_size % hash_block_size:
            raise ValueError(
                f"kv_cache_groups: group {number} has blocks of {spec.block_size} tokens, not a "
                f"multiple of the {hash_block_size} of a hash"
            )
        first = next(iter(iter_layer_specs(spec)))
        window = None
        if isinstance(first, SlidingWindowSpec):
            if first.extra_retained_tokens:
                raise ValueError(f"kv_cache_groups: group {number} keeps tokens for a drafter")
            window = first.sliding_window - 1
        hashes = spec.block_size * blocks_per_chunk // hash_block_size
        groups.append(OffloadGroup(number, spec.block_size, blocks_per_chunk, hashes, window))
    return tuple(groups)


def retention(groups: Sequence[OffloadGroup], interval: int | None) -> Retention:
    """Return the positions at which hits are kept possible.

    Raises ValueError for an interval below 0, or one that is not a multiple of a windowed group's chunk.
    """
    if interval is not None:
        if interval < 0:
            raise ValueError(f"prefix_cache_retention_interval: {interval}, at least 0")
        for group in groups:
            if group.window is not None and interval % group.chunk_size:
                raise ValueError(
                    f"prefix_cache_retention_interval: {interval}, not a multiple of the "
                    f"{group.chunk_size} tokens of a chunk of group {group.group_idx}"
                )
    full = {group.chunk_size for group in groups if group.window is None}
    if full:
        return Retention(full.pop() if len(full) == 1 else None, interval)
    return Retention(max((group.chunk_size for group in groups), default=None), interval)
