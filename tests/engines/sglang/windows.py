"""Slots for a model with sliding windows: SGLang's own allocator, over a pool that holds no tensors."""

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool


class Pool(BaseSWAKVPool):
    full_kv_pool = swa_kv_pool = None

    def __init__(self) -> None:
        pass

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        return self.full_to_swa_index_mapping[kv_indices]

    def get_state_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        return [], [], []

    get_key_buffer = get_kv_buffer = get_value_buffer = set_kv_buffer = None


def window_allocator(slots: int) -> Any:
    """Return an allocator of single tokens whose windows have three tenths of the full slots."""
    return SWATokenToKVPoolAllocator(
        slots, slots * 3 // 10, 1, torch.float32, "cpu", Pool(), need_sort=False
    )
