"""The limits that memory sets: blocks, and the longest request.

    bytes a block  = the pages of one block in all layers of a group; the largest of all groups
    blocks         = memory // bytes a block, the null block included
    a request      = the blocks that each group needs for `max_model_len` tokens, summed over groups

An engine refuses to start unless one request of `max_model_len` tokens fits into all blocks except the
null block.

vLLM's functions take a whole `VllmConfig`; these take any object with the attributes of `MemoryConfig`:
vLLM's own, or the one that `lab/simworker/v1/memory/plan.py` makes of the simulator's settings.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32, without several ranks of a pipeline, host-resident
groups and drafters; memory is laid out layer by layer (LBNHC).
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import ceil

from warmpath.lab.simworker.v1.specs.group_layers import Layers, get_kv_cache_groups
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MemoryLimits,
    ModelLength,
    UniformTypeKVCacheSpecs,
    iter_layer_specs,
)

GIB = 1 << 30
GPU_MEMORY_UTILIZATION = 0.92
"""Share of the device's memory that the engine takes: the default of 0.32."""
REMEDY = "Raise gpu_memory_utilization, or num_gpu_blocks_override if that is given"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The size of the cache. Raises ValueError, naming field and limit.

    Names, defaults and limits are those of `vllm/config/cache.py` of 0.32. The device's memory, which
    vLLM measures, is a setting here.
    """

    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    """Blocks, the null block included; None to let the memory decide."""
    gpu_memory_bytes: int
    """Bytes of the device's memory."""
    non_kv_cache_memory_bytes: int = 0
    """Bytes of the engine's share that weights and a step's other needs take."""

    def __post_init__(self) -> None:
        if self.available_memory_bytes <= 0:
            raise ValueError(
                f"non_kv_cache_memory_bytes: {self.non_kv_cache_memory_bytes}, must be less than the "
                f"share {GPU_MEMORY_UTILIZATION} of gpu_memory_bytes {self.gpu_memory_bytes}"
            )

    @property
    def available_memory_bytes(self) -> int:
        """Bytes for the cache: the engine's share of the device, less all other uses.

        Source: `vllm/v1/worker/gpu_worker.py` and `request_memory` in `vllm/v1/worker/utils.py` of 0.32.
        """
        share = ceil(self.gpu_memory_bytes * GPU_MEMORY_UTILIZATION)
        return share - self.non_kv_cache_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig(MemoryLimits):
    """The part of a `VllmConfig` that is used here."""

    cache_config: CacheConfig


def max_memory_usage_bytes(vllm_config: MemoryLimits, kv_cache_specs: Iterable[KVCacheSpec]) -> int:
    """Return the most bytes that one request of `max_model_len` tokens holds in these layers."""
    return sum(spec.max_memory_usage_bytes(vllm_config) for spec in kv_cache_specs)


def estimate_max_model_len(
    vllm_config: MemoryLimits, kv_cache_spec: Layers, available_memory: int
) -> int:
    """Return the tokens of the longest request that fits, at most `max_model_len`; 0 if none fits."""
    specs = list(kv_cache_spec.values())
    return _longest(
        vllm_config, lambda limits: max_memory_usage_bytes(limits, specs) <= available_memory
    )


def get_kv_cache_config(
    vllm_config: MemoryConfig, kv_cache_spec: Layers, available_memory: int
) -> KVCacheConfig:
    """Return the blocks of a model in so many bytes, and the places of its layers' pages.

    Without layers there is one block, since a pool needs its null block. If `original_max_model_len` is
    -1, `max_model_len` is set to the longest request that fits. Raises ValueError if memory does not
    hold a request of `max_model_len` tokens.
    """
    groups = get_kv_cache_groups(vllm_config, dict(kv_cache_spec))
    if not groups:
        return KVCacheConfig(1, [], groups)
    per_block = _bytes_per_block(groups)
    blocks = vllm_config.cache_config.num_gpu_blocks_override
    if blocks is None:
        blocks = max(available_memory // per_block, 0)
    else:
        available_memory = blocks * per_block
    usable = available_memory - per_block
    needed = _needed_by(groups)
    if vllm_config.model_config.original_max_model_len == -1:
        longest = _longest(vllm_config, lambda limits: needed(limits) <= usable)
        if not longest:
            raise ValueError(
                f"max_model_len: not one token fits into the KV cache's memory. {REMEDY}"
            )
        vllm_config.model_config.max_model_len = longest
    _check_enough(vllm_config, usable, needed)
    tensors = []
    for group in groups:
        offset = 0
        for spec, names in _layers_by_spec(group).items():
            page = spec.page_size_bytes
            tensors.append(KVCacheTensor(per_block * blocks, names, page * blocks, page, offset))
            offset += len(names) * page * blocks
    return KVCacheConfig(blocks, tensors, groups)


def generate_scheduler_kv_cache_config(kv_cache_config: KVCacheConfig) -> KVCacheConfig:
    """Return the configuration by which a scheduler allocates.

    A group of layers with pages of several sizes gets the spec of one of them, since they need the same
    blocks.
    """
    config = deepcopy(kv_cache_config)
    for group in config.kv_cache_groups:
        group.kv_cache_spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
    return config


def _layers_by_spec(group: KVCacheGroupSpec) -> dict[KVCacheSpec, list[str]]:
    spec = group.kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return {spec: list(group.layer_names)} if group.layer_names else {}
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, layer in spec.kv_cache_specs.items():
        by_spec.setdefault(layer, []).append(name)
    return by_spec


def _bytes_per_block(groups: Iterable[KVCacheGroupSpec]) -> int:
    return max(
        sum(spec.page_size_bytes * len(names) for spec, names in _layers_by_spec(group).items())
        for group in groups
    )


def _needed_by(groups: Sequence[KVCacheGroupSpec]) -> Callable[[MemoryLimits], int]:
    per_block = _bytes_per_block(groups)
    specs = [group.kv_cache_spec for group in groups]

    def needed(limits: MemoryLimits) -> int:
        return per_block * sum(
            -(-spec.max_memory_usage_bytes(limits) // spec.page_size_bytes) for spec in specs
        )

    return needed


def _longest(vllm_config: MemoryLimits, fits: Callable[[MemoryLimits], bool]) -> int:
    """Return the most tokens, up to `max_model_len`, that fit; 0 if not even one does."""
    in_flight = vllm_config.max_in_flight_tokens
    low, high = 0, vllm_config.model_config.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if fits(MemoryLimits(ModelLength(middle), in_flight)):
            low = middle
        else:
            high = middle - 1
    return low


def _check_enough(
    vllm_config: MemoryLimits, available: int, needed_for: Callable[[MemoryLimits], int]
) -> None:
    if available <= 0:
        raise ValueError(
            f"no memory for KV cache blocks: {available} bytes are left besides the null block. "
            f"{REMEDY}"
        )
    needed = needed_for(vllm_config)
    if needed <= available:
        return
    most = vllm_config.model_config.max_model_len
    longest = _longest(vllm_config, lambda limits: needed_for(limits) <= available)
    fits = f"the estimated maximum model length is {longest}" if longest else "not one token fits"
    raise ValueError(
        f"max_model_len: one request of the max seq len, {most} tokens, needs {_gib(needed)} GiB of "
        f"KV cache, and {_gib(available)} GiB are available; {fits}. "
        f"{REMEDY}, or lower max_model_len"
    )


def _gib(size: int) -> float:
    return round(size / GIB, 2)
