"""The KV cache's settings, checked.

Names, defaults and limits are those of `vllm/config/cache.py` of 0.32, and for offloading those of
`kv_connector_extra_config` in `vllm/distributed/kv_transfer/kv_connector/v1/offloading/config.py`. The
device's memory, which vLLM measures, is a setting here. `lab/simworker/v1/memory/plan.py` checks the
settings against a model's layers and the scheduler's settings.
"""

from dataclasses import dataclass
from math import ceil

from warmpath.lab.simworker.v1.hashing.algorithms import get_hash_fn_by_name

CACHE_DTYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
"""Types in which keys and values may be stored; "auto" is the model's own type."""

GIB = 1 << 30

HOST_PAGE = 4096
"""Bytes of a page of host memory."""


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
    cache_dtype: str = "auto"
    """One of `CACHE_DTYPES`."""
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"
    """One of `lab/simworker/v1/hashing/algorithms.py`."""
    prefix_match_unit: int | None = None
    """Tokens of one hash, a divisor of all groups' blocks; None for the greatest such divisor."""
    prefix_cache_retention_interval: int | None = 0
    """`KVCacheConfig.prefix_cache_retention_interval`, tokens."""
    kv_offloading_size: float | None = None
    """GiB of host memory for offloaded blocks, of all ranks together; None for no offloading."""
    offload_blocks_per_chunk: int = 1
    """Blocks that are offloaded together."""
    offload_block_size: int | None = None
    """Tokens of a chunk, a multiple of `block_size`; instead of `offload_blocks_per_chunk`."""
    offload_prompt_only: bool = True
    """Whether only blocks of prompts are offloaded, not those of generated tokens."""
    self_describing_kv_events: bool = False
    """Whether events of offloaded blocks carry tokens and parents."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.cache_dtype not in CACHE_DTYPES:
            raise ValueError(
                f"cache_dtype: {self.cache_dtype!r} is none of {', '.join(CACHE_DTYPES)}"
            )
        try:
            get_hash_fn_by_name(self.prefix_caching_hash_algo)
        except ValueError as error:
            raise ValueError(f"prefix_caching_hash_algo: {error}") from None
        self._check_memory()
        self._check_offloading()

    def _check_numbers(self) -> None:
        for name, least in (
            ("block_size", 1),
            # The null block is never used.
            ("num_gpu_blocks_override", 2),
            ("kv_cache_memory_bytes", 1),
            ("gpu_memory_bytes", 1),
            ("non_kv_cache_memory_bytes", 0),
            ("prefix_match_unit", 1),
            ("prefix_cache_retention_interval", 0),
            ("offload_blocks_per_chunk", 1),
            ("offload_block_size", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: {value}, at least {least}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization: {self.gpu_memory_utilization}, above 0 and at most 1"
            )

    def _check_memory(self) -> None:
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

    def _check_offloading(self) -> None:
        size = self.offload_block_size
        if size is not None:
            if self.offload_blocks_per_chunk != 1:
                raise ValueError(
                    "offload_block_size, offload_blocks_per_chunk: only one of the two"
                )
            if size % self.block_size:
                raise ValueError(
                    f"offload_block_size: {size}, not a multiple of block_size {self.block_size}; "
                    f"{-(-size // self.block_size) * self.block_size} is"
                )
        if self.kv_offloading_size is None:
            return
        if not self.kv_offloading_size > 0:
            raise ValueError(f"kv_offloading_size: {self.kv_offloading_size} GiB, above 0")
        if not self.enable_prefix_caching:
            raise ValueError(
                "kv_offloading_size: offloaded blocks are found by prefix caching only"
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

    @property
    def blocks_per_chunk(self) -> int:
        if self.offload_block_size is not None:
            return self.offload_block_size // self.block_size
        return self.offload_blocks_per_chunk

    def num_offload_chunks(self, bytes_per_block: int) -> int:
        """Return the number of chunks in host memory; `bytes_per_block` is for all ranks together.

        A chunk takes whole pages of host memory. Source: `vllm/v1/kv_offload/cpu/spec.py` of 0.32.
        """
        if self.kv_offloading_size is None:
            return 0
        chunk = bytes_per_block * self.blocks_per_chunk
        return int(self.kv_offloading_size * GIB) // (-(-chunk // HOST_PAGE) * HOST_PAGE)
