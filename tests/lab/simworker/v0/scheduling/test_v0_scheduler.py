"""The default policy: scenarios of vLLM 0.9.2's tests/core/test_scheduler.py, in our words."""

import pytest

from tests.lab.simworker.v0.groups import (
    BLOCK_SIZE,
    append,
    chunks,
    ids,
    make_group,
    make_groups,
    make_scheduler,
    run,
    step,
)
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus
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


def make_encoding(request_id: str, prompt: int, encoded: int) -> SequenceGroup:
    group = make_group(request_id, prompt)
    group.encoder_seq = Sequence(900, {"prompt_token_ids": list(range(encoded))}, BLOCK_SIZE)
    return group


def test_what_an_encoder_computed_has_blocks_as_long_as_its_request_runs() -> None:
    scheduler = make_scheduler(gpu=12)
    groups = [make_encoding("0", 4, 8), make_encoding("1", 4, 12)]
    for group in groups:
        scheduler.add_seq_group(group)
    metadata, _ = run(scheduler)
    tables = [told.cross_block_table for told in metadata]
    assert [len(table or ()) for table in tables] == [2, 3]
    assert [told.encoder_seq_data for told in metadata] == [
        group.encoder_seq and group.encoder_seq.data for group in groups
    ]
    for group in groups:
        append(group)
    assert run(scheduler)[0][0].cross_block_table == tables[0]
    scheduler.abort_seq_group("0")
    groups[1].first_seq.status = SequenceStatus.FINISHED_STOPPED
    scheduler.free_finished_seq_groups()
    scheduler.check()
    assert scheduler.block_manager.get_num_free_gpu_blocks() == 12


def test_a_group_preempted_by_recompute_gives_up_its_encoders_blocks_too() -> None:
    scheduler = make_scheduler(gpu=7)
    for group in (make_encoding("0", 4, 8), make_encoding("1", 4, 8)):
        scheduler.add_seq_group(group)
    step(scheduler)
    for _ in range(5):
        step(scheduler)
    assert ids(scheduler.waiting) == ["1"]
    assert scheduler.block_manager.cross_block_tables.keys() == {"0"}


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
