"""The KV cache's settings, checked.

Names, defaults and limits are those of `vllm/config/cache.py` of 0.32. The device's memory, which vLLM
measures, is a setting here. `lab/simworker/v1/memory/plan.py` checks the
settings against a model's layers and the scheduler's settings.
"""

from dataclasses import dataclass
from math import ceil

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The size of the cache, and its options. Raises ValueError, naming field and limit.

    The first of these that is given sets the number of blocks: `num_gpu_blocks_override`,
    `kv_cache_memory_bytes`, `gpu_memory_bytes`.
    """

    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    """Blocks, the null block included; None to let the memory decide."""
    kv_cache_memory_bytes: int | None = None
    """Memory of one rank's cache; None to compute it from the device's memory."""
    gpu_memory_bytes: int | None = None
    """Memory of the device; None if another setting has the size."""
    gpu_memory_utilization: float = 0.92
    """Share of the device's memory that the engine takes."""
    non_kv_cache_memory_bytes: int = 0
    """The part of that share for weights and for a step's other needs."""
    enable_prefix_caching: bool = True
    prefix_match_unit: int | None = None
    """Tokens of one hash, a divisor of all groups' blocks; None for the greatest such divisor."""
    prefix_cache_retention_interval: int | None = 0
    """`KVCacheConfig.prefix_cache_retention_interval`, tokens."""

    def __post_init__(self) -> None:
        for name, least in (
            ("block_size", 1),
            # The null block is never used.
            ("num_gpu_blocks_override", 2),
            ("kv_cache_memory_bytes", 1),
            ("gpu_memory_bytes", 1),
            ("non_kv_cache_memory_bytes", 0),
            ("prefix_match_unit", 1),
            ("prefix_cache_retention_interval", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: {value}, at least {least}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization: {self.gpu_memory_utilization}, above 0 and at most 1"
            )
        given = (self.num_gpu_blocks_override, self.kv_cache_memory_bytes, self.gpu_memory_bytes)
        if given == (None, None, None):
            raise ValueError(
                "num_gpu_blocks_override, kv_cache_memory_bytes, gpu_memory_bytes: one must be given"
            )
        if given[:2] == (None, None) and self.available_memory_bytes <= 0:
            raise ValueError(
                f"non_kv_cache_memory_bytes: {self.non_kv_cache_memory_bytes}, must be less than the "
                f"share {self.gpu_memory_utilization} of gpu_memory_bytes {self.gpu_memory_bytes}"
            )

    @property
    def available_memory_bytes(self) -> int:
        """Memory of one rank's cache; 0 if only a number of blocks is given.

        Source: `vllm/v1/worker/gpu_worker.py` and `request_memory` in `vllm/v1/worker/utils.py` of 0.32.
        """
        if self.kv_cache_memory_bytes is not None:
            return self.kv_cache_memory_bytes
        if self.gpu_memory_bytes is None:
            return 0
        share = ceil(self.gpu_memory_bytes * self.gpu_memory_utilization)
        return share - self.non_kv_cache_memory_bytes
