"""A model, its layers and its memory become groups, pages and numbers of blocks."""

from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest

from warmpath.lab.simworker.v1.memory.limits import GIB, CacheConfig
from warmpath.lab.simworker.v1.memory.plan import ModelShape, plan_memory
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_dtype_size,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)

LLAMA_3_8B = ModelShape()
"""32 layers with 8 heads of 128 elements: 2 MiB a block of 16 tokens."""

HYBRID = ModelShape(num_layers=12, sliding_window=128, full_attention_every=6)


def scheduler(**changes: Any) -> SchedulerConfig:
    fields = {"max_model_len": 8192, "max_num_batched_tokens": 2048}
    return SchedulerConfig(**(fields | changes))


def of(blocks: int, **changes: Any) -> CacheConfig:
    """Return the settings of a device whose memory has room for some blocks of 2 MiB."""
    share = ceil(100 * GIB * 0.92)
    return CacheConfig(
        gpu_memory_bytes=100 * GIB, non_kv_cache_memory_bytes=share - blocks * (2 << 20), **changes
    )


def test_memory_becomes_blocks() -> None:
    plan = plan_memory(LLAMA_3_8B, of(2048), scheduler())
    assert (plan.bytes_per_block, plan.kv_cache_config.num_blocks) == (2 << 20, 2048)
    with pytest.raises(
        ValueError, match=r"must be less than the share 0\.92 of gpu_memory_bytes 1"
    ):
        of(0)


def test_each_sixth_layer_has_full_attention() -> None:
    kinds = [type(spec) for spec in HYBRID.kv_cache_spec(16).values()]
    assert kinds == ([SlidingWindowSpec] * 5 + [FullAttentionSpec]) * 2
    plan = plan_memory(HYBRID, of(1, num_gpu_blocks_override=2000), scheduler())
    assert [len(group.layer_names) for group in plan.kv_cache_config.kv_cache_groups] == [2] * 6


def test_a_length_that_does_not_fit_is_refused_or_fitted() -> None:
    with pytest.raises(ValueError, match=r"max_model_len: .* 8192 tokens, needs"):
        plan_memory(LLAMA_3_8B, of(101), scheduler())
    fitted = plan_memory(LLAMA_3_8B, of(101), scheduler(), fit_max_model_len=True)
    assert fitted.kv_cache_config.num_blocks == 101


def test_a_model_without_attention_has_the_null_block() -> None:
    plan = plan_memory(ModelShape(num_layers=0), of(1), scheduler())
    assert (plan.kv_cache_config.num_blocks, plan.bytes_per_block) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"num_layers": -1}, "num_layers: -1, at least 0"),
        ({"num_kv_heads": 0}, "num_kv_heads: 0, at least 1"),
        ({"head_size": 0}, "head_size: 0, at least 1"),
        ({"full_attention_every": -1}, "full_attention_every: -1, at least 0"),
        ({"full_attention_every": 2}, "full_attention_every: 2, but without a sliding_window"),
        ({"sliding_window": 0}, "sliding_window: 0, at least 1"),
        ({"dtype": "int3"}, "dtype: 'int3' is none of"),
    ],
)
def test_an_impossible_model_is_refused(changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        ModelShape(**changes)


def full(**changes: Any) -> FullAttentionSpec:
    fields = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return FullAttentionSpec(**(fields | changes))


def window(**changes: Any) -> SlidingWindowSpec:
    fields = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return SlidingWindowSpec(**(fields | {"sliding_window": 8} | changes))


def test_a_page_holds_the_keys_and_values_of_a_block() -> None:
    assert full().page_size_bytes == 16 * 2 * (64 + 64) * 4
    assert full(head_size_v=32, dtype="bfloat16").page_size_bytes == 16 * 2 * (64 + 32) * 2
    assert full(page_size_padded=20_000).page_size_bytes == 20_000


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("fp8", 1)])
def test_a_type_is_known_by_name_or_says_its_size(dtype: str, size: int) -> None:
    assert get_dtype_size(dtype) == size
    assert get_dtype_size(SimpleNamespace(itemsize=size)) == size


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"block_size": 0}, "block_size: 0, at least 1"),
        ({"num_kv_heads": 0}, "num_kv_heads: 0, at least 1"),
        ({"head_size": 0}, "head_size: 0, at least 1"),
        ({"head_size_v": -2}, "head_size_v: -2, at least 0"),
        ({"dtype": "float31"}, "dtype: 'float31' is none of float32,"),
        ({"page_size_padded": 16383}, "page_size_padded: 16383 bytes, at least the 16384"),
        ({"sliding_window": 0}, "sliding_window: 0, at least 1"),
        ({"extra_retained_tokens": -1}, "extra_retained_tokens: -1, at least 0"),
    ],
)
def test_an_impossible_spec_is_refused(changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        window(**changes)


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ([full(), window()], AssertionError),
        ([full(), full(head_size=32)], AssertionError),
        ([full(sliding_window=8), full(attention_chunk_size=8)], AssertionError),
        ([full(sliding_window=8), full(sliding_window=9)], ValueError),
        ([window(), window(sliding_window=9)], AssertionError),
        ([window(), full()], AssertionError),
    ],
)
def test_layers_that_differ_do_not_merge(layers: list[KVCacheSpec], error: type[Exception]) -> None:
    with pytest.raises(error):
        layers[0].merge(layers)


def test_events_name_kind_and_window() -> None:
    both = UniformTypeKVCacheSpecs(16, kv_cache_specs={"a": full(), "b": window()})
    assert get_kv_cache_spec_kind(window()) == "sliding_window"
    assert get_kv_cache_spec_kind(both) == "unknown"
    assert get_kv_cache_spec_sliding_window(window()) == 8
    assert get_kv_cache_spec_sliding_window(full(sliding_window=8)) is None
    assert get_kv_cache_spec_sliding_window(both) is None
