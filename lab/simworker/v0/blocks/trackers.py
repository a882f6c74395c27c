"""The prefix cache's records of each sequence: its cached tokens, and when it was last scheduled.

Source: both classes in `vllm/core/block/prefix_caching_block.py` of 0.9.2.
"""

from warmpath.lab.simworker.v0.blocks.block import BlockId
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import PrefixCachingBlock
from warmpath.lab.simworker.v0.requests.sequence import Sequence


class ComputedBlocksTracker:
    """Hashes of each sequence's full blocks, and the cached tokens last found for it.

    Hashes are made as the allocator's blocks make theirs, but before a sequence has any block, so that
    the scheduler knows how many tokens of a prompt it would have to compute.
    """

    def __init__(
        self, allocator: CpuGpuBlockAllocator, block_size: int, enable_caching: bool
    ) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._enable_caching = enable_caching
        self._seq_id_to_blocks_hashes: dict[int, list[int]] = {}
        self._seq_id_to_num_tokens_computed: dict[int, int] = {}

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Return how many of a sequence's first tokens are cached and computed, in whole blocks.

        In prefill the first answer is kept: a prompt computed in chunks would otherwise find its own
        blocks, which count as computed from its first chunk on.
        """
        if not self._enable_caching:
            return 0
        hashes = self._update_seq_hashes(seq)
        known = self._seq_id_to_num_tokens_computed.get(seq.seq_id)
        if known is not None and seq.is_prefill():
            return known
        cached = len(self._allocator.gpu.find_cached_blocks_prefix(hashes)) * self._block_size
        self._seq_id_to_num_tokens_computed[seq.seq_id] = cached
        return cached

    def _update_seq_hashes(self, seq: Sequence) -> list[int]:
        hashes = self._seq_id_to_blocks_hashes.setdefault(seq.seq_id, [])
        token_ids = seq.get_token_ids()
        size = self._block_size
        for at in range(len(hashes) * size, len(token_ids) - size + 1, size):
            hashes.append(
                PrefixCachingBlock.hash_block_tokens(
                    not hashes,
                    hashes[-1] if hashes else None,
                    token_ids[at : at + size],
                    seq.extra_hash(),
                )
            )
        return hashes

    def remove_seq(self, seq_id: int) -> None:
        """Forget a sequence; unknown ones are ignored.

        0.9.2 fails for an unknown one, such as a fork that ends before it was scheduled.
        """
        self._seq_id_to_blocks_hashes.pop(seq_id, None)
        self._seq_id_to_num_tokens_computed.pop(seq_id, None)


class LastAccessBlocksTracker:
    """The time of each sequence's last access; its blocks get it when they are freed.

    The evictor does not need the time before, so a step writes one time a sequence, not one a block.
    """

    def __init__(self, allocator: CpuGpuBlockAllocator) -> None:
        self._allocator = allocator
        self._seq_last_access: dict[int, float | None] = {}

    @property
    def seq_ids(self) -> set[int]:
        return set(self._seq_last_access)

    def add_seq(self, seq_id: int) -> None:
        """Track a sequence."""
        self._seq_last_access[seq_id] = None

    def remove_seq(self, seq_id: int) -> None:
        """Stop tracking a sequence. Raises KeyError if it is not tracked."""
        del self._seq_last_access[seq_id]

    def update_last_access(self, seq_id: int, time: float) -> None:
        """Set the time of an access to a tracked sequence, seconds."""
        self._seq_last_access[seq_id] = time

    def update_seq_blocks_last_access(self, seq_id: int, block_ids: list[BlockId]) -> None:
        """Set the time of a sequence's blocks to its own, if it has one."""
        time = self._seq_last_access[seq_id]
        if time is not None:
            self._allocator.mark_blocks_as_accessed(block_ids, time)
