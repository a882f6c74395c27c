"""States of a model with state-space layers: SGLang's own allocator, over a pool that holds no tensors.

A tree that is imported after this module gets its settings here, and not from a server's arguments.
"""

from types import SimpleNamespace

from sglang.srt import runtime_context
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

CHUNK = 64
"""Tokens of a step of the layers' kernels."""
_MAMBA = SimpleNamespace(
    # A path may have any number of states.
    mamba_max_states_per_path=-1,
    enable_mamba_extra_buffer_lazy=False,
)
runtime_context.get_exec = lambda: SimpleNamespace(mamba=_MAMBA)
runtime_context.mamba_cache_chunk_size = lambda: CHUNK


class StatePool(HybridReqToTokenPool):
    """Has `count` states: one for each request that runs, the others for the tree."""

    mamba_ckpt_pool = None

    def __init__(self, count: int) -> None:
        self.mamba_allocator = MambaSlotAllocator(count, "cpu")
