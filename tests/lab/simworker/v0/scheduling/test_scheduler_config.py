"""The settings of v0's scheduler and cache: defaults, contradictions, sizes."""

from typing import Any

import pytest

from warmpath.lab.simworker.v0.scheduling.scheduler_config import GIB, CacheConfig, SchedulerConfig


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({}, 8192),
        ({"max_model_len": 1000}, 2048),
        ({"enable_chunked_prefill": True}, 2048),
        ({"enable_chunked_prefill": True, "num_scheduler_steps": 8}, 8192),
        ({"max_model_len": 100, "max_num_seqs": 4}, 400),
    ],
)
def test_the_default_of_a_steps_tokens_is_the_engines(limits: dict[str, Any], tokens: int) -> None:
    assert SchedulerConfig(**limits).max_num_batched_tokens == tokens


def test_a_prompt_is_long_from_four_percent_where_prefills_share_a_step() -> None:
    shared = {"enable_chunked_prefill": True, "max_model_len": 1000}
    assert SchedulerConfig(**shared).long_prefill_token_threshold == 0
    assert SchedulerConfig(**shared, max_num_partial_prefills=2).long_prefill_token_threshold == 40


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"runner_type": "pooling"}, "runner_type 'pooling'"),
        ({"policy": "fair"}, "policy 'fair'"),
        ({"preemption_mode": "kill"}, "preemption_mode 'kill'"),
        ({"policy": "priority", "preemption_mode": "swap"}, "preemption_mode"),
        ({"max_num_seqs": 0}, "max_num_seqs 0 is less than 1"),
        ({"max_model_len": 0}, "max_model_len 0 is less than 1"),
        ({"num_scheduler_steps": 0}, "num_scheduler_steps 0 is less than 1"),
        ({"num_lookahead_slots": -1}, "num_lookahead_slots -1 is less than 0"),
        ({"delay_factor": -1}, "delay_factor -1 is less than 0"),
        ({"max_num_batched_tokens": 9, "max_num_seqs": 10}, "is less than max_num_seqs 10"),
        ({"max_num_batched_tokens": 500}, "is less than max_model_len 8192"),
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills 0"),
        ({"max_num_partial_prefills": 2}, "enable_chunked_prefill is off"),
        ({"max_long_partial_prefills": 2}, "max_long_partial_prefills 2"),
        ({"max_long_partial_prefills": 0}, "max_long_partial_prefills 0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold -1"),
        ({"enable_chunked_prefill": True, "max_num_partial_prefills": 2, "long_prefill_token_threshold": 9000}, "is more than max_model_len 8192"),
    ],
)  # fmt: skip
def test_limits_that_contradict_each_other_are_named(limits: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SchedulerConfig(**limits)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"block_size": 0}, "block_size 0 is less than 1"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization 1.1"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization 0"),
        ({"swap_space": -1}, "swap_space -1 is less than 0"),
        ({"cache_dtype": "int3"}, "cache_dtype 'int3'"),
        ({"sliding_window": 0}, "sliding_window 0 is less than 1"),
        ({"sliding_window": 8, "enable_prefix_caching": True}, "exclude each other"),
    ],
)
def test_cache_settings_are_checked(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CacheConfig(**settings)


def test_pools_are_sized_from_what_memory_is_left() -> None:
    config = CacheConfig(16, gpu_memory_utilization=0.5, swap_space=2)
    config.size_pools(gpu_bytes=80 * GIB, taken_bytes=30 * GIB, block_bytes=GIB // 4)
    assert (config.num_gpu_blocks, config.num_cpu_blocks) == (40, 8)
    config.size_pools(gpu_bytes=40 * GIB, taken_bytes=30 * GIB, block_bytes=GIB)
    assert config.num_gpu_blocks == 0
