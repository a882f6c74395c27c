"""The memory plan that follows from an engine's settings: its groups, its blocks and their limits.

    ModelShape + CacheConfig + SchedulerConfig  ->  MemoryPlan

Raises ValueError, naming the field, if an engine with these settings would not start.
"""

from dataclasses import dataclass
from math import gcd, lcm

from warmpath.lab.simworker.v1.memory.cache_config import CacheConfig
from warmpath.lab.simworker.v1.memory.limits import (
    MemoryConfig,
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
    get_max_concurrency_for_kv_cache_config,
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
    """Elements a head."""
    dtype: str = "bfloat16"
    """The model's type, which the cache has too."""
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
    """An engine's blocks and limits."""

    kv_cache_config: KVCacheConfig
    """The scheduler's configuration."""
    max_model_len: int
    """The configured length, or the longest that fits."""
    scheduler_block_size: int
    """Every hit is a multiple of this number of tokens."""
    hash_block_size: int
    """Tokens of one of `request.block_hashes`."""
    bytes_per_block: int
    """Bytes of a block on one rank, in all layers of a group."""
    max_concurrency: float
    """Requests of `max_model_len` tokens that fit at once."""


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
    ranks = get_kv_cache_configs(config, [layers], [cache.available_memory_bytes])
    found = generate_scheduler_kv_cache_config(ranks)
    scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(found, cache)
    _check_retention(found, scheduler_block_size)
    tensors = ranks[0].kv_cache_tensors
    bytes_per_block = tensors[0].size // found.num_blocks if tensors else 0
    return MemoryPlan(
        kv_cache_config=found,
        max_model_len=length.max_model_len,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        bytes_per_block=bytes_per_block,
        max_concurrency=get_max_concurrency_for_kv_cache_config(config, found) if tensors else 0.0,
    )


def resolve_kv_cache_block_sizes(
    kv_cache_config: KVCacheConfig, cache: CacheConfig
) -> tuple[int, int]:
    """Return two numbers of tokens: every hit is a multiple of the first; a hash covers the second.

    Several groups have hits at common multiples of their blocks, and hashes of a common divisor.
    Raises ValueError for a `prefix_match_unit` that does not divide them, or that is not the block of a
    single group. Source: `vllm/v1/core/kv_cache_utils.py` of 0.32.
    """
    sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
    sizes = sizes or [cache.block_size]
    unit = cache.prefix_match_unit
    hits = lcm(*sizes)
    if len(sizes) == 1:
        if cache.enable_prefix_caching and unit not in {None, hits}:
            raise ValueError(
                f"prefix_match_unit: {unit}, with one group of layers it is block_size {hits}"
            )
        return hits, hits
    if not cache.enable_prefix_caching:
        return hits, hits
    hashed = gcd(*sizes) if unit is None else unit
    if any(size % hashed for size in sizes):
        raise ValueError(f"prefix_match_unit: {unit}, must divide the groups' blocks {sizes}")
    return hits, hashed


def _check_retention(found: KVCacheConfig, scheduler_block_size: int) -> None:
    """Raise ValueError as `vllm/v1/core/kv_cache_coordinator.py` of 0.32 does."""
    interval = found.prefix_cache_retention_interval
    if not interval:
        return
    if not any(isinstance(g.kv_cache_spec, SlidingWindowSpec) for g in found.kv_cache_groups):
        raise ValueError(
            f"prefix_cache_retention_interval: {interval}, but no layer has a sliding window: give 0"
        )
    if interval % scheduler_block_size:
        raise ValueError(
            f"prefix_cache_retention_interval: {interval}, not a multiple of {scheduler_block_size}, "
            "the least common multiple of the groups' block sizes"
        )
