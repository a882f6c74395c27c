"""The default policy: scenarios of vLLM 0.9.2's tests/core/test_scheduler.py, in our words."""

from collections import deque

import pytest

from tests.lab.simworker.v0.groups import (
    BLOCK_SIZE,
    Clock,
    append,
    chunks,
    fork,
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
from warmpath.lab.simworker.v0.scheduling.scheduling_budget import SchedulingBudget


def test_groups_are_counted_from_when_they_are_added_until_they_are_aborted() -> None:
    scheduler = make_scheduler()
    for count in range(3):
        scheduler.add_seq_group(make_group(str(count), 4))
        assert scheduler.get_num_unfinished_seq_groups() == count + 1
    step(scheduler)
    assert scheduler.has_unfinished_seqs()
    scheduler.abort_seq_group({"0", "2", "unknown"})
    assert ids(scheduler.running) == ["1"]
    scheduler.abort_seq_group("1")
    assert not scheduler.has_unfinished_seqs()
    assert scheduler.get_and_reset_finished_requests_ids() == ["0", "2", "1"]
    assert scheduler.get_and_reset_finished_requests_ids() == []
    assert scheduler.block_manager.get_num_free_gpu_blocks() == 64


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


def test_a_new_prompt_goes_before_running_decodes() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=30, max_num_seqs=2, max_model_len=30)
    make_groups(scheduler, 1)
    step(scheduler)
    scheduler.add_seq_group(make_group("1", 30))
    assert chunks(step(scheduler)) == {"1": 30}


def test_the_last_running_group_gives_way_and_is_computed_anew_with_its_output() -> None:
    scheduler = make_scheduler(gpu=2)
    make_groups(scheduler, 4, 4)
    step(scheduler)
    outputs = step(scheduler)
    assert ids(outputs.scheduled_seq_groups) == ["0"]
    assert outputs.preempted == 1
    assert ids(scheduler.waiting) == ["1"]
    scheduler.abort_seq_group("0")
    outputs = step(scheduler)
    assert chunks(outputs) == {"1": 5}


def test_no_more_sequences_run_than_allowed() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    make_groups(scheduler, 4, 4, 4)
    assert ids(step(scheduler).scheduled_seq_groups) == ["0", "1"]
    assert ids(step(scheduler).scheduled_seq_groups) == ["0", "1"]
    scheduler.abort_seq_group("0")
    assert ids(step(scheduler).scheduled_seq_groups) == ["2"]


def test_new_prompts_wait_for_company_as_long_as_the_delay_says() -> None:
    clock = Clock()
    scheduler = make_scheduler(delay_factor=0.5, clock=clock)
    make_groups(scheduler, 4)
    assert step(scheduler).num_prefill_groups == 1
    clock.now += 2
    scheduler.add_seq_group(make_group("1", 4, arrival=clock.now))
    clock.now += 1
    assert step(scheduler).num_prefill_groups == 0
    assert scheduler.last_prompt_latency == 3
    clock.now += 0.6
    assert chunks(step(scheduler)) == {"1": 4}


def test_a_prompt_longer_than_the_model_takes_is_ignored() -> None:
    scheduler = make_scheduler(max_model_len=30)
    (group,) = make_groups(scheduler, 31)
    budget = SchedulingBudget(token_budget=1000, max_num_seqs=10)
    outputs = scheduler._schedule_prefills(budget, None)
    assert outputs.ignored_seq_groups == [group]
    assert not outputs.seq_groups
    assert not scheduler.waiting
    assert group.first_seq.status is SequenceStatus.FINISHED_IGNORED
    assert (budget.num_batched_tokens, budget.num_curr_seqs) == (0, 0)


def test_a_prompt_that_the_memory_can_never_hold_is_ignored_and_others_go_on() -> None:
    scheduler = make_scheduler(gpu=5)
    large, small = make_groups(scheduler, 21, 8)
    outputs = step(scheduler)
    assert outputs.ignored_seq_groups == [large]
    assert chunks(outputs) == {small.request_id: 8}


def test_a_prompt_that_does_not_fit_now_stops_those_behind_it() -> None:
    scheduler = make_scheduler(gpu=10)
    scheduler.add_seq_group(make_group("5", 20))
    step(scheduler)
    make_groups(scheduler, 30, 4)
    assert ids(step(scheduler).scheduled_seq_groups) == ["5"]
    assert ids(scheduler.waiting) == ["0", "1"]


@pytest.mark.parametrize(
    ("token_budget", "spent", "scheduled"),
    [(0, 0, 0), (60, 0, 1), (60, 30, 0), (90, 30, 1), (150, 30, 2)],
)
def test_prompts_start_within_the_token_budget(
    token_budget: int, spent: int, scheduled: int
) -> None:
    scheduler = make_scheduler()
    make_groups(scheduler, 60, 60)
    budget = SchedulingBudget(token_budget=token_budget, max_num_seqs=10)
    budget.add_num_batched_tokens("other", spent)
    outputs = scheduler._schedule_prefills(budget, None)
    assert len(outputs.seq_groups) == scheduled
    assert len(scheduler.waiting) == 2 - scheduled
    assert budget.num_batched_tokens == spent + 60 * scheduled
    assert budget.num_curr_seqs == scheduled


def test_a_steps_limit_of_tokens_holds_for_a_larger_budget_too() -> None:
    scheduler = make_scheduler()
    make_groups(scheduler, 60, 60, 4)
    outputs = scheduler._schedule_prefills(SchedulingBudget(1000, 10), None)
    assert ids(outputs.seq_groups) == ["0", "1"]


def test_prompts_start_within_the_budget_of_sequences() -> None:
    scheduler = make_scheduler()
    make_groups(scheduler, 4, 4, 4)
    budget = SchedulingBudget(token_budget=1000, max_num_seqs=3)
    budget.add_num_seqs("other", 1)
    assert len(scheduler._schedule_prefills(budget, None).seq_groups) == 2
    scheduler.waiting = deque()
    scheduler.add_seq_group(make_group("9", 4))
    assert not scheduler._schedule_prefills(budget, None).seq_groups


def test_a_prompt_whose_adapter_has_no_room_is_overtaken_and_keeps_its_place() -> None:
    scheduler = make_scheduler(loras=1)
    for number, lora in enumerate([1, 2, 0, 0]):
        scheduler.add_seq_group(make_group(str(number), 30, lora=lora))
    loras: set[int] = set()
    budget = SchedulingBudget(token_budget=60, max_num_seqs=10)
    assert ids(scheduler._schedule_prefills(budget, loras).seq_groups) == ["0", "2"]
    assert ids(scheduler.waiting) == ["1", "3"]
    assert loras == {1}
    loras.clear()
    budget = SchedulingBudget(token_budget=30, max_num_seqs=10)
    assert ids(scheduler._schedule_prefills(budget, loras).seq_groups) == ["1"]
    assert loras == {2}


def test_a_step_is_ordered_by_adapters_with_prefills_first() -> None:
    scheduler = make_scheduler(loras=2, enable_chunked_prefill=True)
    for number, lora in enumerate([2, 1, 0]):
        scheduler.add_seq_group(make_group(str(number), 4, lora=lora))
    assert ids(step(scheduler).scheduled_seq_groups) == ["2", "1", "0"]
    scheduler.add_seq_group(make_group("3", 4, lora=1))
    outputs = step(scheduler)
    assert ids(outputs.scheduled_seq_groups) == ["3", "2", "1", "0"]
    assert outputs.num_loras == 2


def test_the_first_of_two_sequences_to_write_to_a_shared_block_copies_it() -> None:
    scheduler = make_scheduler()
    (group,) = make_groups(scheduler, 6)
    step(scheduler)
    fork(scheduler, group, 50)
    before = scheduler.block_manager.get_block_table(group.first_seq)[-1]
    (pair,) = step(scheduler).blocks_to_copy
    assert pair == (before, scheduler.block_manager.get_block_table(group.first_seq)[-1])
    assert not step(scheduler).blocks_to_copy


@pytest.mark.parametrize(("caching", "scheduled"), [(True, ["1", "2"]), (False, ["1"])])
def test_cached_tokens_cost_no_budget(caching: bool, scheduled: list[str]) -> None:
    scheduler = make_scheduler(caching=caching, max_num_batched_tokens=12, max_model_len=12)
    scheduler.add_seq_group(make_group("0", list(range(8))))
    step(scheduler)
    for number in (1, 2):
        tail = list(range(50 * number, 50 * number + 4))
        scheduler.add_seq_group(make_group(str(number), [0, 1, 2, 3, *tail]))
    metadata, outputs = run(scheduler)
    assert ids(outputs.scheduled_seq_groups) == scheduled
    assert [told.token_chunk_size for told in metadata] == [8] * len(scheduled)
    assert [len(told.computed_block_nums) for told in metadata] == [int(caching)] * len(scheduled)
    assert outputs.num_batched_tokens == 8 * len(scheduled)


def test_lookahead_slots_are_kept_for_decodes() -> None:
    scheduler = make_scheduler(num_lookahead_slots=4)
    (group,) = make_groups(scheduler, 4)
    assert step(scheduler).num_lookahead_slots == 0
    assert len(scheduler.block_manager.get_block_table(group.first_seq)) == 1
    assert step(scheduler).num_lookahead_slots == 4
    assert len(scheduler.block_manager.get_block_table(group.first_seq)) == 3


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
