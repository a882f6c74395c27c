"""The default policy: scenarios of vLLM 0.9.2's tests/core/test_scheduler.py, in our words."""

import pytest

from tests.lab.simworker.v0.groups import (
    chunks,
    make_groups,
    make_scheduler,
    step,
)
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig


def test_prompts_are_computed_together_and_then_decode_together() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16, max_model_len=16)
    make_groups(scheduler, 4, 4, 4)
    outputs = step(scheduler)
    assert chunks(outputs) == {"0": 4, "1": 4, "2": 4}
    assert outputs.num_prefill_groups == 3
    assert outputs.num_batched_tokens == 12
    outputs = step(scheduler)
    assert chunks(outputs) == {"0": 1, "1": 1, "2": 1}
    assert outputs.num_prefill_groups == 0
    assert not outputs.is_empty()
    assert outputs.blocks_to_swap_in == outputs.blocks_to_swap_out == outputs.blocks_to_copy == []


def test_a_step_without_anything_to_do_is_empty() -> None:
    assert step(make_scheduler()).is_empty()


def test_a_prompt_that_the_memory_can_never_hold_is_ignored_and_others_go_on() -> None:
    scheduler = make_scheduler(gpu=5)
    large, small = make_groups(scheduler, 21, 8)
    outputs = step(scheduler)
    assert outputs.ignored_seq_groups == [large]
    assert chunks(outputs) == {small.request_id: 8}


@pytest.mark.parametrize("field", ["num_gpu_blocks", "num_cpu_blocks"])
def test_a_scheduler_needs_sized_pools(field: str) -> None:
    cache = CacheConfig(4, num_gpu_blocks=1, num_cpu_blocks=1)
    setattr(cache, field, None)
    with pytest.raises(ValueError, match=f"{field} None"):
        Scheduler(SchedulerConfig(), cache, None)


def test_a_leak_is_noticed() -> None:
    scheduler = make_scheduler()
    make_groups(scheduler, 4)
    step(scheduler)
    scheduler.running.clear()
    with pytest.raises(BrokenInvariantError, match="leaked"):
        scheduler.check()


def test_a_running_group_without_blocks_is_noticed() -> None:
    scheduler = make_scheduler()
    (group,) = make_groups(scheduler, 4)
    step(scheduler)
    scheduler.free_seq(group.first_seq)
    with pytest.raises(BrokenInvariantError, match="no blocks"):
        scheduler.check()
