"""Executes the scheduler's decisions, on memory instead of a model.

Source: `vllm/worker/worker.py` of 0.9.2, in another order. 0.9.2 swaps in first, which can go wrong: the
destination of a copy on write may be freed in the same step, since its content is cached already, and a
block may be swapped into it, which the copy then overwrites. In the scheduler's own order, swaps out,
copies, swaps in, no block is overwritten that is still needed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

from warmpath.lab.simworker.v0.device import BlockPairs
from warmpath.lab.simworker.v0.memory.array_backend import ArrayT
from warmpath.lab.simworker.v0.memory.block_content import BlockContent
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence that a forward pass computes."""

    block_ids: Sequence[int]
    """The sequence's block table."""
    token_ids: Sequence[int]
    """The sequence's tokens, from its first on."""
    computed: range
    """Positions of the tokens to compute."""
    extra_hash: int | None = None


class Worker(Generic[ArrayT]):
    """A cache engine, and a forward pass that fills it."""

    def __init__(self, cache_engine: CacheEngine[ArrayT]) -> None:
        self.cache_engine = cache_engine
        self.content = BlockContent(cache_engine)

    def execute_model(
        self,
        chunks: Iterable[Chunk],
        blocks_to_swap_in: BlockPairs,
        blocks_to_swap_out: BlockPairs,
        blocks_to_copy: BlockPairs,
    ) -> None:
        """Execute one step: swaps out, copies, swaps in, then the forward pass."""
        self.cache_engine.swap_out(blocks_to_swap_out)
        self.cache_engine.copy(blocks_to_copy)
        self.cache_engine.swap_in(blocks_to_swap_in)
        for chunk in chunks:
            self.content.compute(chunk.block_ids, chunk.token_ids, chunk.computed, chunk.extra_hash)
