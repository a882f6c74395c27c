"""SGLang's own prefix cache, from 0.5.6 on, behind one interface: what its versions call differently is here."""

import dataclasses
import inspect
import os
import sys
from array import array
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from host_tier import HostTier
from prompts import Space
from stand_ins import Nothing, load

_MEMORY = "sglang.srt.mem_cache."
_EVENTS = "sglang.srt.disaggregation.kv_events:"
_NAMES = [
    f"{_MEMORY}cache_init_params:CacheInitParams",
    f"{_MEMORY}radix_cache:RadixKey",
    f"{_MEMORY}radix_cache:RadixCache",
    f"?{_MEMORY}base_prefix_cache:InsertParams",
    f"?{_MEMORY}base_prefix_cache:MatchPrefixParams",
    f"?{_MEMORY}base_prefix_cache:EvictParams",
    f"?{_MEMORY}events:KvEventLoraNames",
    f"{_MEMORY}allocator:TokenToKVPoolAllocator",
    f"{_MEMORY}memory_pool:ReqToTokenPool",
    f"{_EVENTS}KVEventBatch",
    f"{_EVENTS}ZmqEventPublisher",
]
_UNIFIED_NAMES = [
    f"{_MEMORY}unified_radix_cache:UnifiedRadixCache",
    f"{_MEMORY}unified_cache.component_type:ComponentType",
]


@dataclass(frozen=True)
class Form:
    """How a cache is set up."""

    tree: str
    """`radix` (RadixCache), or UnifiedRadixCache with a tree in `python` or compiled, `rust`."""
    page: int
    """Tokens of a page."""
    pages: int
    """Pages on the device."""
    host_pages: int = 0
    """Pages of HiCache's host tier; 0 for none."""
    eagle: bool = False
    format: str = "default"
    policy: str = "lru"
    window: int = 0
    """Tokens of the sliding window that some layers have; 0 for none. It takes pages of one token."""
    states: int = 0
    """States of state-space layers; 0 for a model without. They take pages of one token."""


@dataclass(frozen=True)
class Found:
    """A prefix that the tree holds: tokens on the device, tokens that follow on the host, the tree's result."""

    device: int
    host: int
    result: Any


class Cache:
    """A cache and its allocator. Raises AssertionError where the wheel has no such tree."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.unified = form.tree != "radix"
        self.sglang = SimpleNamespace(**load(_NAMES))
        self.requests = self._new_requests()
        if self.unified:
            vars(self.sglang).update(load(_UNIFIED_NAMES))
        self._views = hasattr(self.sglang.RadixKey, "page_aligned")
        module = sys.modules[self.sglang.RadixKey.__module__]
        self._packed = partial(array, "q") if hasattr(module, "array") else list
        self._own_salt = "cache_salt" in inspect.signature(self.sglang.RadixKey).parameters
        self.allocator = self._new_allocator()
        self._lora_names = self.sglang.KvEventLoraNames and self.sglang.KvEventLoraNames()
        self._lora_ids: dict[str, str] = {}
        self.tree = self._new_tree()
        self.tells_path = hasattr(self.tree, "path_device_indices")
        """Whether an insert tells its node, and the tree each node's slots."""
        self.host = HostTier(form.host_pages * form.page, self) if form.host_pages else None

    def _new_allocator(self) -> Any:
        slots = self.form.page * self.form.pages
        if self.form.window:
            assert self.form.page == 1
            from windows import window_allocator

            return window_allocator(slots)
        return self.sglang.TokenToKVPoolAllocator(
            size=slots, dtype=torch.float32, device="cpu", kvcache=Nothing(), need_sort=False
        )

    def _new_requests(self) -> Any:
        if self.form.states:
            assert self.form.page == 1
            # Before the tree is imported: it takes its settings from the server's arguments.
            from states import StatePool

            return StatePool(self.form.states)
        return self.sglang.ReqToTokenPool(
            size=8, max_context_len=4096, device="cpu", enable_memory_saver=False
        )

    def _new_tree(self) -> Any:
        form, sglang = self.form, self.sglang
        wanted = {
            "disable": False,
            "req_to_token_pool": self.requests,
            "token_to_kv_pool_allocator": self.allocator,
            "page_size": form.page,
            "is_eagle": form.eagle,
            "enable_kv_cache_events": True,
            "dynamo_kv_event_format": form.format == "dynamo",
            "kv_event_lora_names": self._lora_names,
            "eviction_policy": form.policy,
        }
        known = {field.name for field in dataclasses.fields(sglang.CacheInitParams)}
        options = {name: value for name, value in wanted.items() if name in known}
        if not self.unified:
            return sglang.RadixCache(sglang.CacheInitParams(**options))
        options["tree_components"] = (sglang.ComponentType.FULL,)
        if form.window:
            options["tree_components"] += (sglang.ComponentType.SWA,)
            options["sliding_window_size"] = form.window
        if form.states:
            options["tree_components"] += (sglang.ComponentType.MAMBA,)
        if "tree_core_backend" in known:
            options["tree_core_backend"] = form.tree
        else:
            os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = form.tree
        tree = sglang.UnifiedRadixCache(sglang.CacheInitParams(**options))
        core = getattr(tree, "_tree_core_backend", "python")
        assert core == form.tree, core
        return tree

    def namespace(self, space: Space) -> tuple[str | None, dict[str, str | None]]:
        """Return a request's extra key and its own salt, as SGLang's `Req` makes them of its fields.

        Versions without a salt of its own join it to the extra key; an adapter's id is joined always.
        """
        extra = space.extra_key
        if not self._own_salt:
            extra = space.cache_salt + extra
        if space.lora:
            number = self._lora_ids.setdefault(space.lora, f"{1 + len(self._lora_ids):032x}")
            extra += number
            if self._lora_names:
                request = SimpleNamespace(extra_key=extra, lora_id=number)
                self._lora_names.register(request, space.lora)
        return extra or None, {"cache_salt": space.cache_salt or None} if self._own_salt else {}

    def match(self, ids: list[int], space: Space) -> Found:
        extra, salt = self.namespace(space)
        key = self.sglang.RadixKey(self._packed(ids), extra, **salt)
        if self.sglang.MatchPrefixParams:
            key = self.sglang.MatchPrefixParams(key=key)
        result = self.tree.match_prefix(key)
        device = getattr(result, "device_prefix_len", None)
        if device is None:
            device = len(result.device_indices)
        return Found(device, getattr(result, "host_hit_length", 0) if self.host else 0, result)

    def pages_of(self, ids: list[int], space: Space) -> Any:
        """Return the key of all full pages of a sequence, to insert them."""
        extra, salt = self.namespace(space)
        if self._views:
            key = self.sglang.RadixKey(self._packed(ids), extra, **salt)
            return key.maybe_to_bigram_view(self.form.eagle)[0].page_aligned(self.form.page)
        units: list[Any] = list(pairwise(ids)) if self.form.eagle else list(ids)
        whole = len(units) // self.form.page * self.form.page
        return self.sglang.RadixKey(units[:whole], extra, is_bigram=self.form.eagle)

    def insert(self, key: Any, slots: torch.Tensor, **more: Any) -> Any:
        if self.sglang.InsertParams:
            return self.tree.insert(self.sglang.InsertParams(key=key, value=slots, **more))
        return SimpleNamespace(prefix_len=self.tree.insert(key, slots, **more))

    def slots_of(self, result: Any) -> torch.Tensor:
        """Return the slots of a match or an insert, from the sequence's start on."""
        if hasattr(result, "device_indices"):
            return result.device_indices
        return self.tree.path_device_indices(result.last_device_node)

    def lock(self, node: Any) -> Any:
        """Keep a node and all above it; returns the handle that `unlock` takes."""
        if hasattr(self.tree, "lock"):
            return self.tree.lock(node)
        result = self.tree.inc_lock_ref(node)
        return (node, result.to_dec_params()) if self.unified else (node,)

    def unlock(self, handle: Any) -> None:
        if hasattr(self.tree, "unlock"):
            self.tree.unlock(handle)
        else:
            self.tree.dec_lock_ref(*handle)

    def allocate(self, count: int) -> torch.Tensor | None:
        """Return new slots, for which the cache evicts what it must; None where too much is locked."""
        evict = self.sglang.EvictParams
        if self.form.window:
            full = max(0, count - self.allocator.full_available_size())
            windows = max(0, count - self.allocator.swa_available_size())
            if full or windows:
                self.tree.evict(evict(num_tokens=full, swa_num_tokens=windows))
        elif (short := count - self.allocator.available_size()) > 0:
            self.tree.evict(evict(num_tokens=short) if evict else short)
        return self.allocator.alloc(count) if count else torch.empty(0, dtype=torch.int64)

    def allocate_state(self) -> torch.Tensor:
        """Return a new state, for which the cache evicts another."""
        states = self.requests.mamba_allocator
        if not states.available_size():
            self.tree.evict(self.sglang.EvictParams(mamba_num=1))
        taken = states.alloc(1)
        assert taken is not None, "all states are locked"
        return taken

    def free_state(self, state: torch.Tensor) -> None:
        self.requests.mamba_allocator.free(state)

    def reset(self) -> None:
        """Flush the cache, as `/flush_cache` does."""
        if self.host:
            self.host.finish_copies()
        self.tree.reset()
        self.allocator.clear()
        if self.form.states:
            self.requests.mamba_allocator.clear()
