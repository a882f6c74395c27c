"""Puts layers into KV cache groups; the layers of a group share one block table.

A model with one kind of layer has one group. A hybrid model, of layers with full attention and layers
with windows, has several groups, which all take block ids from one pool. A block id names one page
of every layer of a group, whichever group holds it, so all pages must have one size, and groups should
have one size too:

1. Pages are made equal: a layer with smaller pages gets more tokens a block, or, if the largest page is
   not a multiple of its own, a page that is padded.
2. Equal layers form a sort, and each sort is split into groups of as many layers as the rarest sort has,
   or of as many as the most frequent one has, if that is below 1.5 times as many. Ten layers with
   full attention and fifty with windows make 1 + 5 groups of ten. A remainder is wasted memory.
3. A sort's layers are dealt out in turn (0, 3, 6 | 1, 4, 7 | 2, 5, 8), so that each stage of a pipeline
   has layers of every group.

With the hybrid manager disabled, layers with windows are allocated as if they had full attention.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32, for layouts in which each layer's pages lie together
(LBNHC, the default of its attention backends), without drafters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MemoryLimits,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

Layers = Mapping[str, KVCacheSpec]
"""Layer name -> its cache, in the model's order."""


def create_kv_cache_group_specs(
    kv_cache_spec: Layers, grouped_layer_names: Iterable[list[str]]
) -> list[KVCacheGroupSpec]:
    """Return a group for each list of layers. Raises AssertionError if a list's layers do not match."""
    groups = []
    for names in grouped_layer_names:
        specs = [kv_cache_spec[name] for name in names]
        groups.append(KVCacheGroupSpec(names, specs[0].merge(specs)))
    return groups


def is_kv_cache_spec_uniform(kv_cache_spec: Layers) -> bool:
    """Return whether all layers can be one group; True without layers.

    Raises ValueError for layers with full attention that compute with different windows.
    """
    specs = list(kv_cache_spec.values())
    return not specs or _can_merge(specs)


def unify_kv_cache_spec_page_size(kv_cache_spec: Layers) -> Layers:
    """Return the layers with pages of one size, that of the largest."""
    largest = max((spec.page_size_bytes for spec in kv_cache_spec.values()), default=0)
    return {name: _with_page_size(spec, largest) for name, spec in kv_cache_spec.items()}


def unify_hybrid_kv_cache_specs(kv_cache_spec: dict[str, KVCacheSpec]) -> None:
    """Change windows to full attention, in place, if a model has both.

    Raises ValueError if the layers cannot be one group even so.
    """
    if _is_one_type(kv_cache_spec):
        return
    full = [spec for spec in kv_cache_spec.values() if isinstance(spec, FullAttentionSpec)]
    sizes = {spec.block_size for spec in full}
    block_size = sizes.pop() if len(sizes) == 1 else None
    if full:
        for name, spec in kv_cache_spec.items():
            if isinstance(spec, SlidingWindowSpec):
                kv_cache_spec[name] = _as_full_attention(spec, block_size or spec.block_size)
    if not _is_one_type(kv_cache_spec):
        raise ValueError(
            "disable_hybrid_kv_cache_manager: the layers differ in more than their windows; "
            "they need the hybrid KV cache manager"
        )


def get_kv_cache_groups(
    vllm_config: MemoryLimits, kv_cache_spec: dict[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    """Return the groups of a model; an empty list for one without attention.

    With the hybrid manager disabled, `kv_cache_spec` is changed in place.
    """
    if vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
        unify_hybrid_kv_cache_specs(kv_cache_spec)
    if not kv_cache_spec:
        return []
    if is_kv_cache_spec_uniform(kv_cache_spec):
        return create_kv_cache_group_specs(kv_cache_spec, [list(kv_cache_spec)])
    together = UniformTypeKVCacheSpecs.from_specs(kv_cache_spec)
    if together is not None:
        return [KVCacheGroupSpec(list(kv_cache_spec), together)]
    equal_pages = unify_kv_cache_spec_page_size(kv_cache_spec)
    return create_kv_cache_group_specs(equal_pages, _deal_out(_sorts(equal_pages)))


def _sorts(kv_cache_spec: Layers) -> list[list[str]]:
    """Return the sorts, each a list of layers that can be in one group."""
    equal: dict[KVCacheSpec, list[str]] = {}
    for name, spec in kv_cache_spec.items():
        equal.setdefault(spec, []).append(name)
    sorts: list[tuple[list[KVCacheSpec], list[str]]] = []
    for spec, names in equal.items():
        for specs, others in sorts:
            if _can_merge([*specs, spec], or_windows_differ=True):
                specs.append(spec)
                others.extend(names)
                break
        else:
            sorts.append(([spec], list(names)))
    return [names for _, names in sorts]


def _deal_out(sorts: Sequence[Sequence[str]]) -> list[list[str]]:
    fewest = min(len(names) for names in sorts)
    most = max(len(names) for names in sorts)
    size = most if most < fewest * 1.5 else fewest
    groups = []
    for names in sorts:
        count = -(-len(names) // size)
        groups += [list(names[first::count]) for first in range(count)]
    return groups


def _can_merge(specs: Sequence[KVCacheSpec], *, or_windows_differ: bool = False) -> bool:
    try:
        specs[0].merge(specs)
    except AssertionError:
        return False
    except ValueError:
        if or_windows_differ:
            return False
        raise
    return True


def _is_one_type(kv_cache_spec: Layers) -> bool:
    return is_kv_cache_spec_uniform(kv_cache_spec) or UniformTypeKVCacheSpecs.is_uniform_type(
        kv_cache_spec
    )


def _with_page_size(spec: KVCacheSpec, page_size: int) -> KVCacheSpec:
    if spec.page_size_bytes == page_size:
        return spec
    assert isinstance(spec, AttentionSpec)
    times, rest = divmod(page_size, spec.page_size_bytes)
    if rest or spec.page_size_padded is not None:
        return replace(spec, page_size_padded=page_size)
    return spec.copy_with_new_block_size(spec.block_size * times)


def _as_full_attention(spec: SlidingWindowSpec, block_size: int) -> FullAttentionSpec:
    padded = spec.page_size_padded
    if padded is not None:
        padded = max(padded, spec.unpadded_page_size_bytes * block_size // spec.block_size)
    return FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        head_size_v=spec.head_size_v,
        dtype=spec.dtype,
        page_size_padded=padded,
        sliding_window=spec.sliding_window,
    )
