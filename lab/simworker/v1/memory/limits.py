"""The limits that memory sets: blocks, the longest request, requests at once.

    bytes a block  = the pages of one block in all layers of a group; the largest of all groups
    blocks         = memory // bytes a block, the null block included; the fewest of all ranks
    a request      = the blocks that each group needs for `max_model_len` tokens, summed over groups
    at once        = blocks / blocks a request

An engine refuses to start unless one request of `max_model_len` tokens fits into all blocks except the
null block.

vLLM's functions take a whole `VllmConfig`; these take any object with the attributes of `MemoryConfig`:
vLLM's own, or the one that `lab/simworker/v1/memory/plan.py` makes of the simulator's settings.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32, without host-resident groups and drafters; memory is
laid out layer by layer (LBNHC).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from warmpath.lab.simworker.v1.memory.cache_config import GIB, CacheConfig
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

REMEDY = "Raise gpu_memory_utilization, or num_gpu_blocks_override if that is given"


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
    """Return the longest request that fits, up to `max_model_len` tokens; 0 if none fits."""
    specs = list(kv_cache_spec.values())
    return _longest(
        vllm_config,
        lambda limits: max_memory_usage_bytes(limits, specs) <= available_memory,
    )


def check_enough_kv_cache_memory(
    vllm_config: MemoryConfig, kv_cache_spec: Layers, available_memory: int
) -> None:
    """Raise ValueError, with figures and remedies, unless a request of `max_model_len` tokens fits."""
    if not kv_cache_spec:
        return
    groups = get_kv_cache_groups(vllm_config, dict(kv_cache_spec))
    usable = available_memory - _bytes_per_block(groups)
    specs = list(kv_cache_spec.values())
    _check_enough(
        vllm_config,
        usable,
        lambda limits: max_memory_usage_bytes(limits, specs),
    )


def may_override_num_blocks(vllm_config: MemoryConfig, num_blocks: int) -> int:
    """Return the configured number of blocks, if there is one, else `num_blocks`."""
    override = vllm_config.cache_config.num_gpu_blocks_override
    return num_blocks if override is None else override


def get_num_blocks(
    vllm_config: MemoryConfig, num_layers: int, available_memory: int, page_size: int
) -> int:
    """Return the number of blocks that fit, each a page of `page_size` bytes in `num_layers` layers."""
    return may_override_num_blocks(
        vllm_config, max(available_memory // (page_size * num_layers), 0)
    )


def get_kv_cache_config_from_groups(
    vllm_config: MemoryConfig,
    kv_cache_groups: list[KVCacheGroupSpec],
    available_memory: int,
) -> KVCacheConfig:
    """Return the blocks of one rank, and the places of its layers' pages.

    Without groups there is one block, since a pool needs its null block.
    """
    interval = vllm_config.cache_config.prefix_cache_retention_interval
    if not kv_cache_groups:
        return KVCacheConfig(1, [], kv_cache_groups, interval)
    per_block = _bytes_per_block(kv_cache_groups)
    blocks = get_num_blocks(vllm_config, 1, available_memory, per_block)
    tensors = []
    for group in kv_cache_groups:
        offset = 0
        for spec, names in _layers_by_spec(group).items():
            page = spec.page_size_bytes
            tensors.append(KVCacheTensor(per_block * blocks, names, page * blocks, page, offset))
            offset += len(names) * page * blocks
    return KVCacheConfig(blocks, tensors, kv_cache_groups, interval)


def get_kv_cache_configs(
    vllm_config: MemoryConfig,
    kv_cache_specs: Sequence[Layers],
    available_memory: Sequence[int],
) -> list[KVCacheConfig]:
    """Return the KV cache of each rank, all with the same number of blocks.

    `kv_cache_specs` and `available_memory` (bytes) have an entry for each rank. A layer may be on
    several ranks; the groups are those of the whole model, so that one scheduler's block ids are valid
    on all ranks. If `original_max_model_len` is -1, `max_model_len` is set to the longest request that
    fits on all ranks.

    Raises ValueError if a rank's memory does not hold a request of `max_model_len` tokens,
    AssertionError if ranks differ in a layer's spec.
    """
    model: dict[str, KVCacheSpec] = {}
    for layers in kv_cache_specs:
        for name, spec in layers.items():
            if model.setdefault(name, spec) != spec:
                raise AssertionError(f"kv_cache_specs: layer {name} differs between ranks")
    groups = get_kv_cache_groups(vllm_config, model)
    ranks = [_of_rank(groups, layers) for layers in kv_cache_specs]
    override = vllm_config.cache_config.num_gpu_blocks_override
    memory = [
        available if override is None or not own else override * _bytes_per_block(own)
        for own, available in zip(ranks, available_memory, strict=True)
    ]
    usable = [
        (own, available - _bytes_per_block(own))
        for own, available in zip(ranks, memory, strict=True)
        if own
    ]
    if vllm_config.model_config.original_max_model_len == -1:
        _fit_max_model_len(vllm_config, usable)
    for own, available in usable:
        _check_enough(vllm_config, available, _needed_by(own))
    configs = [
        get_kv_cache_config_from_groups(vllm_config, own, available)
        for own, available in zip(ranks, memory, strict=True)
    ]
    fewest = min(config.num_blocks for config in configs)
    return [
        config
        if config.num_blocks == fewest
        else get_kv_cache_config_from_groups(vllm_config, own, fewest * _bytes_per_block(own))
        for own, config in zip(ranks, configs, strict=True)
    ]


def generate_scheduler_kv_cache_config(
    kv_cache_configs: Sequence[KVCacheConfig],
) -> KVCacheConfig:
    """Return the configuration by which a scheduler allocates for all ranks: that of the first rank.

    A group of layers with pages of several sizes gets the spec of one of them, since they need the same
    blocks. Raises ValueError if ranks differ in blocks.
    """
    if len({config.num_blocks for config in kv_cache_configs}) != 1:
        blocks = [config.num_blocks for config in kv_cache_configs]
        raise ValueError(f"num_blocks: {blocks}, must be the same for all ranks")
    config = deepcopy(kv_cache_configs[0])
    for group in config.kv_cache_groups:
        group.kv_cache_spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
    return config


def get_max_concurrency_for_kv_cache_config(
    vllm_config: MemoryLimits, kv_cache_config: KVCacheConfig
) -> float:
    """Return the number of requests of `max_model_len` tokens that fit at once."""
    blocks = sum(
        _blocks_needed(group.kv_cache_spec, vllm_config)
        for group in kv_cache_config.kv_cache_groups
    )
    return kv_cache_config.num_blocks / blocks


def get_kv_cache_capacity(
    vllm_config: MemoryLimits, kv_cache_config: KVCacheConfig
) -> tuple[int, float]:
    """Return the tokens of requests of `max_model_len` that fit, and the number of these requests."""
    at_once = get_max_concurrency_for_kv_cache_config(vllm_config, kv_cache_config)
    return int(at_once * vllm_config.model_config.max_model_len), at_once


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


def _blocks_needed(spec: KVCacheSpec, limits: MemoryLimits) -> int:
    return -(-spec.max_memory_usage_bytes(limits) // spec.page_size_bytes)


def _needed_by(groups: Sequence[KVCacheGroupSpec]) -> Callable[[MemoryLimits], int]:
    per_block = _bytes_per_block(groups)
    specs = [group.kv_cache_spec for group in groups]
    return lambda limits: per_block * sum(_blocks_needed(spec, limits) for spec in specs)


def _of_rank(groups: Sequence[KVCacheGroupSpec], layers: Layers) -> list[KVCacheGroupSpec]:
    """Return the model's groups with a rank's layers only."""
    own = []
    for group in groups:
        names = [name for name in group.layer_names if name in layers]
        if len(names) == len(group.layer_names):
            own.append(group)
            continue
        spec = group.kv_cache_spec
        if names and isinstance(spec, UniformTypeKVCacheSpecs):
            kept: Mapping[str, KVCacheSpec] = {name: spec.kv_cache_specs[name] for name in names}
            spec = UniformTypeKVCacheSpecs(spec.block_size, kv_cache_specs=kept)
        eagle = group.is_eagle_group and bool(names)
        own.append(KVCacheGroupSpec(names, spec, is_eagle_group=eagle))
    if own and not any(group.layer_names for group in own):
        raise ValueError("kv_cache_specs: a rank has no layers while others have some")
    return own


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


def _fit_max_model_len(
    vllm_config: MemoryConfig, usable: Sequence[tuple[Sequence[KVCacheGroupSpec], int]]
) -> None:
    longest = vllm_config.model_config.max_model_len
    for groups, available in usable:
        needed = _needed_by(groups)
        longest = min(longest, _longest(vllm_config, lambda limits: needed(limits) <= available))  # noqa: B023  used at once
    if not longest:
        raise ValueError(f"max_model_len: not one token fits into the KV cache's memory. {REMEDY}")
    vllm_config.model_config.max_model_len = longest


def _gib(size: int) -> float:
    return round(size / GIB, 2)
