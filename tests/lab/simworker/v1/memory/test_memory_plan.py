"""A model, its memory and its settings become numbers of blocks."""

from typing import Any

import pytest

from warmpath.lab.simworker.v1.memory.cache_config import CacheConfig
from warmpath.lab.simworker.v1.memory.plan import ModelShape, plan_memory
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import FullAttentionSpec, SlidingWindowSpec

LLAMA_3_8B = ModelShape()
"""32 layers with 8 heads of 128 elements: 2 MiB a block of 16 tokens."""

HYBRID = ModelShape(num_layers=12, sliding_window=128, full_attention_every=6)

GIB = 1 << 30


def scheduler(**changes: Any) -> SchedulerConfig:
    fields = {"max_model_len": 8192, "max_num_batched_tokens": 2048}
    return SchedulerConfig(**(fields | changes))


def test_memory_becomes_blocks() -> None:
    plan = plan_memory(LLAMA_3_8B, CacheConfig(kv_cache_memory_bytes=4 * GIB), scheduler())
    assert plan.bytes_per_block == 2 << 20
    assert plan.kv_cache_config.num_blocks == 2048
    assert plan.max_concurrency == 4.0
    assert (plan.scheduler_block_size, plan.hash_block_size) == (16, 16)


def test_each_sixth_layer_has_full_attention() -> None:
    kinds = [type(spec) for spec in HYBRID.kv_cache_spec(16).values()]
    assert kinds == ([SlidingWindowSpec] * 5 + [FullAttentionSpec]) * 2
    plan = plan_memory(HYBRID, CacheConfig(num_gpu_blocks_override=2000), scheduler())
    assert [len(group.layer_names) for group in plan.kv_cache_config.kv_cache_groups] == [2] * 6
    # 512 blocks of full attention, and five times ceil((127 + 2048) / 16) + 1 of windows.
    assert plan.max_concurrency == 2000 / (512 + 5 * 137)


def test_a_length_that_does_not_fit_is_refused_or_fitted() -> None:
    cache = CacheConfig(num_gpu_blocks_override=101)
    with pytest.raises(ValueError, match=r"max_model_len: .* 8192 tokens, needs"):
        plan_memory(LLAMA_3_8B, cache, scheduler())
    assert plan_memory(LLAMA_3_8B, cache, scheduler(), fit_max_model_len=True).max_model_len == 1600


def test_a_model_without_attention_has_the_null_block() -> None:
    plan = plan_memory(ModelShape(num_layers=0), CacheConfig(kv_cache_memory_bytes=9), scheduler())
    assert (plan.kv_cache_config.num_blocks, plan.bytes_per_block) == (1, 0)
    assert plan.max_concurrency == 0


def test_hashes_are_of_the_unit_asked_for_where_it_divides_the_blocks() -> None:
    cache = CacheConfig(num_gpu_blocks_override=2000, prefix_match_unit=8)
    assert plan_memory(HYBRID, cache, scheduler()).hash_block_size == 8
    with pytest.raises(ValueError, match="prefix_match_unit: 8, with one group"):
        plan_memory(LLAMA_3_8B, cache, scheduler())
    odd = CacheConfig(num_gpu_blocks_override=2000, prefix_match_unit=5)
    with pytest.raises(ValueError, match="prefix_match_unit: 5, must divide"):
        plan_memory(HYBRID, odd, scheduler())
    off = CacheConfig(
        num_gpu_blocks_override=2000, prefix_match_unit=5, enable_prefix_caching=False
    )
    assert plan_memory(HYBRID, off, scheduler()).hash_block_size == 16


def test_an_interval_needs_windows_and_whole_blocks() -> None:
    cache = CacheConfig(num_gpu_blocks_override=2000, prefix_cache_retention_interval=24)
    with pytest.raises(ValueError, match="prefix_cache_retention_interval: 24, but no layer"):
        plan_memory(LLAMA_3_8B, cache, scheduler())
    with pytest.raises(
        ValueError, match="prefix_cache_retention_interval: 24, not a multiple of 16"
    ):
        plan_memory(HYBRID, cache, scheduler())


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
