"""The memory plan that follows from an engine's settings: its groups, its blocks and their limits.

    ModelShape + CacheConfig + SchedulerConfig  ->  MemoryPlan

Raises ValueError, naming the field, if an engine with these settings would not start.
"""

from dataclasses import dataclass

from warmpath.lab.simworker.v1.memory.limits import (
    CacheConfig,
    MemoryConfig,
    generate_scheduler_kv_cache_config,
    get_kv_cache_config,
)
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    ModelLength,
    SlidingWindowSpec,
    get_dtype_size,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's attention layers on one rank. Raises ValueError, naming the field."""

    num_layers: int = 32
    num_kv_heads: int = 8
    """Heads of keys and values; with tensor parallelism, those of one rank."""
    head_size: int = 128
    """Elements of a head's key, and of its value."""
    dtype: str = "bfloat16"
    """The type of the model's elements, which the cache has too."""
    sliding_window: int | None = None
    """Tokens of the window, for layers that have one; None if no layer has."""
    full_attention_every: int = 1
    """With n, every n-th layer has full attention, the others the window; with 0, no layer has it."""

    def __post_init__(self) -> None:
        for name, least in (
            ("num_layers", 0), ("num_kv_heads", 1), ("head_size", 1), ("full_attention_every", 0),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)}, at least {least}")
        get_dtype_size(self.dtype)
        if self.sliding_window is None and self.full_attention_every != 1:
            raise ValueError(
                f"full_attention_every: {self.full_attention_every}, but without a sliding_window "
                "all layers have full attention (1)"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window: {self.sliding_window}, at least 1")

    def kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the cache of each layer, by its name."""
        every = self.full_attention_every
        full = FullAttentionSpec(
            block_size=block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
        )
        specs: dict[str, KVCacheSpec] = {}
        for number in range(self.num_layers):
            spec: KVCacheSpec = full
            if self.sliding_window is not None and (not every or (number + 1) % every):
                spec = SlidingWindowSpec(
                    block_size=block_size,
                    num_kv_heads=self.num_kv_heads,
                    head_size=self.head_size,
                    dtype=self.dtype,
                    sliding_window=self.sliding_window,
                )
            specs[f"layers.{number}"] = spec
        return specs


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """An engine's groups and blocks."""

    kv_cache_config: KVCacheConfig
    """The groups and the number of blocks, as the scheduler allocates by them."""
    bytes_per_block: int
    """Bytes of a block in all layers of a group."""


def plan_memory(
    model: ModelShape,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    fit_max_model_len: bool = False,
) -> MemoryPlan:
    """Return the plan of an engine.

    With `fit_max_model_len`, `scheduler.max_model_len` is an upper bound and need not fit.
    """
    length = ModelLength(
        scheduler.max_model_len, -1 if fit_max_model_len else scheduler.max_model_len
    )
    config = MemoryConfig(length, scheduler.max_num_batched_tokens, cache_config=cache)
    layers = model.kv_cache_spec(cache.block_size)
    found = get_kv_cache_config(config, layers, cache.available_memory_bytes)
    tensors = found.kv_cache_tensors
    bytes_per_block = tensors[0].size // found.num_blocks if tensors else 0
    return MemoryPlan(generate_scheduler_kv_cache_config(found), bytes_per_block)
