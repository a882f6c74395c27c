"""A stand-in for HiCache's controller and host pool: it books slots and copies nothing.

The tree decides which pages are backed up, loaded back and evicted from the host, and announces them.
"""

from random import Random
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cache import Cache


class HostTier:
    write_policy = "write_through"
    enable_storage = False
    pp_prefetch_command_group = None
    shared_allocation_domain = None
    host_evict_fn = None

    def __init__(self, size: int, cache: "Cache") -> None:
        self.size = size
        self._tree, self._allocator = cache.tree, cache.allocator
        self.device = self._allocator
        self.mem_pool_host = self.anchor_entry = self.host_pool = self
        self.clear()
        tree = self._tree
        tree.cache_controller = tree.host_pool_group = self
        tree.components[cache.sglang.ComponentType.FULL]._full_kv_pool_host = self
        tree.tree_core.set_hicache_enabled()
        tree.tree_core.write_through_threshold = tree.write_through_threshold = 1
        tree.is_write_back, tree.load_back_threshold = False, 1
        tree.metrics_collector, tree.sidecar_pool_specs = None, []

    def clear(self) -> None:
        self.slots = torch.arange(self.size)
        self._writing: list[Any] = []
        self._loading: list[Any] = []

    def reset(self) -> None:
        self.clear()

    def available_size(self) -> int:
        return len(self.slots)

    def get_pool(self, _: Any) -> None:
        return None

    def free(self, slots: torch.Tensor, pool: Any = None) -> None:
        del pool
        self.slots = torch.cat([self.slots, slots])

    def write(
        self, device_value: torch.Tensor, node_id: Any = None, **_: Any
    ) -> torch.Tensor | None:
        """Take host slots for a copy from the device."""
        count = len(device_value)
        if count > len(self.slots):
            return None
        taken, self.slots = self.slots[:count], self.slots[count:]
        self._writing.append(node_id)
        return taken

    def load(
        self, host_indices: torch.Tensor, node_id: Any = None, **_: Any
    ) -> torch.Tensor | None:
        """Take device slots for a copy from the host."""
        taken = self._allocator.alloc(len(host_indices))
        if taken is not None:
            self._loading.append(node_id)
        return taken

    def finish_copies(self, rng: Random | None = None) -> None:
        """End the copies that began; with `rng` only some."""
        while self._writing and (rng is None or rng.random() < 0.5):
            self._tree._finish_write_through_ack(self._writing.pop(0))
        while self._loading and (rng is None or rng.random() < 0.5):
            node, device, pinned = self._tree.ongoing_load_back.pop(self._loading.pop(0))
            self._tree.dec_lock_ref(node, device)
            self._tree.dec_host_lock_ref(node, pinned)
            self._tree.tree_core.finish_load_back(node)
