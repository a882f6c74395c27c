"""The settings of v1's memory: defaults, sizes, and errors that name the setting."""

from typing import Any

import pytest

from warmpath.lab.simworker.v1.memory.cache_config import CacheConfig


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"block_size": 0}, "block_size: 0, at least 1"),
        ({"num_gpu_blocks_override": 1}, "num_gpu_blocks_override: 1, at least 2"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes: 0, at least 1"),
        ({"gpu_memory_bytes": 0}, "gpu_memory_bytes: 0, at least 1"),
        ({"non_kv_cache_memory_bytes": -1}, "non_kv_cache_memory_bytes: -1, at least 0"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization: 0, above 0 and at most 1"),
        ({"gpu_memory_utilization": 1.01}, "gpu_memory_utilization: 1.01, above 0 and at most 1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization: nan, above 0"),
        ({"prefix_match_unit": 0}, "prefix_match_unit: 0, at least 1"),
        ({"prefix_cache_retention_interval": -1}, "prefix_cache_retention_interval: -1, at least 0"),
        ({"num_gpu_blocks_override": None}, "gpu_memory_bytes: one must be given"),
        (
            {"num_gpu_blocks_override": None, "gpu_memory_bytes": 100, "non_kv_cache_memory_bytes": 92},
            "non_kv_cache_memory_bytes: 92, must be less than the share 0.92 of gpu_memory_bytes 100",
        ),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name_and_limit(
    changes: dict[str, Any], refusal: str
) -> None:
    fields: dict[str, Any] = {"num_gpu_blocks_override": 100}
    with pytest.raises(ValueError, match=refusal):
        CacheConfig(**(fields | changes))


def test_the_defaults_are_the_engines() -> None:
    config = CacheConfig(num_gpu_blocks_override=2)
    assert config.block_size == 16
    assert (config.enable_prefix_caching, config.prefix_cache_retention_interval) == (True, 0)


def test_memory_is_what_is_given_or_the_share_less_everything_else() -> None:
    share = CacheConfig(
        gpu_memory_bytes=1000, gpu_memory_utilization=0.5, non_kv_cache_memory_bytes=1
    )
    assert share.available_memory_bytes == 499
    assert CacheConfig(gpu_memory_bytes=9, kv_cache_memory_bytes=5).available_memory_bytes == 5
    assert CacheConfig(num_gpu_blocks_override=5).available_memory_bytes == 0
