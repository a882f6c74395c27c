"""How the blocks of one KV cache group are offloaded: in chunks of several, and not all of them.

Source: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` and
`SlidingWindowManager.reachable_block_mask` in `vllm/v1/core/single_type_kv_cache_manager.py` of 0.32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simworker.v1.kv_cache_spec import KVCacheGroupSpec, SlidingWindowSpec, iter_layer_specs


@dataclass(frozen=True, slots=True)
class OffloadGroup:
    """One group's sizes, all in tokens but where it is said."""

    group_idx: int
    block_size: int
    blocks_per_chunk: int
    hashes_per_chunk: int
    window: int | None
    """Tokens before the next one that a layer reads; None for full attention."""

    @property
    def chunk_size(self) -> int:
        """Tokens a chunk."""
        return self.block_size * self.blocks_per_chunk

    @property
    def window_chunks(self) -> int | None:
        """Chunks in a row that a hit needs; None for all from the start."""
        return None if self.window is None else -(-(self.window + 1) // self.chunk_size)

    def load_window_chunks(self, num_tokens: int) -> int | None:
        """Return the chunks that are loaded for a hit of `num_tokens` tokens; None for all.

        A hit need not end where a chunk ends; the last chunk then reaches beyond it, and the window
        begins one chunk earlier.
        """
        if self.window is None or self.window_chunks is None:
            return None
        beyond = -num_tokens % self.chunk_size
        return max(self.window_chunks, -(-(self.window + beyond) // self.chunk_size))

    def reachable(
        self, start_chunk: int, end_chunk: int, alignment: int | None, final_chunk: int | None
    ) -> list[bool]:
        """Say of each chunk in a range whether a hit can need it.

        Hits end at multiples of `alignment` tokens, and where the request ends, in front of chunk
        `final_chunk` (None while that is not known). Where `alignment` is not known (None), or not a
        multiple of the block size, every chunk may be needed.
        """
        everything = [True] * (end_chunk - start_chunk)
        if self.window is None or alignment is None or alignment % self.block_size:
            return everything
        needed = -(-self.window // self.block_size)
        segment = alignment // self.block_size
        if needed >= segment:
            return everything
        final = 0 if final_chunk is None else final_chunk * self.blocks_per_chunk
        last_segment = final - final % segment

        def block_is(block: int) -> bool:
            if block % segment >= segment - needed:
                return True
            return max(last_segment, final - needed) <= block < final

        size = self.blocks_per_chunk
        return [
            any(block_is(block) for block in range(chunk * size, (chunk + 1) * size))
            for chunk in range(start_chunk, end_chunk)
        ]


def offload_groups(
    kv_cache_groups: Sequence[KVCacheGroupSpec], hash_block_size: int, blocks_per_chunk: int
) -> tuple[OffloadGroup, ...]:
    """Return the groups' sizes.

    Raises ValueError for drafters' groups, for blocks that are no multiple of `hash_block_size` tokens,
    and for `blocks_per_chunk` below 1.
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


def hit_alignment(groups: Sequence[OffloadGroup]) -> int | None:
    """Return the multiples of tokens at which hits end; None where they are not known."""
    full = {group.chunk_size for group in groups if group.window is None}
    if not full:
        return max((group.chunk_size for group in groups), default=None)
    return full.pop() if len(full) == 1 else None
