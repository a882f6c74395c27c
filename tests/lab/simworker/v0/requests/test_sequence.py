"""Sequences and groups of v0, and the settings of its scheduler and cache."""

from typing import Any

import pytest

from warmpath.lab.simworker.v0.requests.lora import LoRAConfig, LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceStage
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(0, tokens, 4)


def test_a_prefill_is_over_when_every_known_token_is_computed() -> None:
    data = sequence([1, 2, 3, 4])
    data.update_num_computed_tokens(3)
    assert (data.stage, data.get_num_uncomputed_tokens()) == (SequenceStage.PREFILL, 1)
    data.update_num_computed_tokens(1)
    data.append_token_id(5)
    assert (data.stage, data.get_num_uncomputed_tokens()) == (SequenceStage.DECODE, 1)
    with pytest.raises(AssertionError, match="6 computed tokens of 5"):
        data.update_num_computed_tokens(2)


def make_sequence(lora: int, salt: str) -> Sequence:
    adapter = LoRARequest("l", lora) if lora else None
    return Sequence(0, [1], 4, lora_request=adapter, cache_salt=salt)


def test_hashes_tell_adapters_and_salts_apart() -> None:
    hashes = [
        make_sequence(lora, salt).extra_hash() for lora in (0, 1, 2) for salt in ("", "x", "y")
    ]
    assert hashes[0] is None
    assert len(set(hashes)) == len(hashes)
    assert make_sequence(1, "x").extra_hash() == make_sequence(1, "x").extra_hash()


def test_adapters_are_numbered_from_one() -> None:
    with pytest.raises(ValueError, match="lora_int_id 0 is less than 1"):
        LoRARequest("l", 0)
    with pytest.raises(ValueError, match="max_loras 0 is less than 1"):
        LoRAConfig(max_loras=0)


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
        ({"sliding_window": 0}, "sliding_window 0 is less than 1"),
        ({"sliding_window": 8, "enable_prefix_caching": True}, "exclude each other"),
    ],
)
def test_cache_settings_are_checked(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CacheConfig(**settings)
