"""Who gives way, how, and when it comes back: scenarios of vLLM 0.9.2's tests/core/test_scheduler.py, in our words."""

import pytest

from tests.lab.simworker.v0.groups import (
    fork,
    ids,
    make_group,
    make_groups,
    make_scheduler,
    start,
    step,
)
from warmpath.lab.simworker.v0.device import AllocStatus
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduling_budget import SchedulingBudget


def cannot_append(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, *request_ids: str) -> None:
    monkeypatch.setattr(
        scheduler.block_manager,
        "can_append_slots",
        lambda seq_group, num_lookahead_slots: seq_group.request_id not in request_ids,  # noqa: ARG005
    )


def test_a_group_without_room_takes_from_behind_and_at_last_goes_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = make_scheduler()
    for number in range(3):
        group = make_group(str(number), 20)
        start(scheduler, group)
        scheduler._add_seq_group_to_running(group)
    cannot_append(scheduler, monkeypatch, "1")
    budget = SchedulingBudget(token_budget=1000, max_num_seqs=10)
    for number in range(3):
        budget.add_num_seqs(str(number), 1)
    outputs = scheduler._schedule_running(budget, None)
    assert ids(outputs.decode_seq_groups) == ["0"]
    # As in 0.9.2, the one that wanted room is uncounted, and the one that gave it is not.
    assert budget.num_curr_seqs == 2
    assert ids(outputs.preempted) == ["2", "1"]
    assert not scheduler.running
    assert not outputs.blocks_to_swap_out
    assert budget.num_batched_tokens == 1
    assert scheduler.num_cumulative_preemption == 2


def test_several_sequences_cannot_be_recomputed() -> None:
    scheduler = make_scheduler(gpu=3, preemption_mode="recompute")
    (group,) = make_groups(scheduler, 7)
    step(scheduler)
    fork(scheduler, group, 50)
    with pytest.raises(RuntimeError, match="has 2 sequences: the limit is 1"):
        step(scheduler)


def swapped_out(scheduler: Scheduler, *lengths: int, loras: bool = False) -> None:
    for number, length in enumerate(lengths):
        group = make_group(str(number), length, lora=number + 1 if loras else 0)
        start(scheduler, group)
        scheduler._swap_out(group, [])
        scheduler._add_seq_group_to_swapped(group)


def test_swapped_groups_come_back_one_adapter_at_a_time() -> None:
    scheduler = make_scheduler(loras=1)
    swapped_out(scheduler, 20, 20, loras=True)
    budget = SchedulingBudget(token_budget=100, max_num_seqs=10)
    loras: set[int] = set()
    outputs = scheduler._schedule_swapped(budget, loras)
    assert ids(outputs.decode_seq_groups) == ["0"]
    assert ids(scheduler.swapped) == ["1"]
    assert (budget.num_batched_tokens, budget.num_curr_seqs, loras) == (1, 1, {1})


@pytest.mark.parametrize(
    ("status", "left", "infeasible"), [(AllocStatus.LATER, 2, 0), (AllocStatus.NEVER, 0, 2)]
)
def test_swapped_groups_that_do_not_fit_wait_or_fail(
    monkeypatch: pytest.MonkeyPatch, status: AllocStatus, left: int, infeasible: int
) -> None:
    scheduler = make_scheduler()
    swapped_out(scheduler, 20, 20)
    monkeypatch.setattr(scheduler.block_manager, "can_swap_in", lambda *_: status)
    outputs = scheduler._schedule_swapped(SchedulingBudget(100, 10), None)
    assert len(scheduler.swapped) == left
    assert len(outputs.infeasible_seq_groups) == infeasible
    assert not outputs.decode_seq_groups


def test_priority_leaves_groups_of_several_sequences_running() -> None:
    scheduler = make_scheduler(gpu=6, policy="priority")
    group = make_group("0", 9, priority=1)
    scheduler.add_seq_group(group)
    step(scheduler)
    fork(scheduler, group, 50)
    scheduler.add_seq_group(make_group("1", 16))
    assert ids(step(scheduler).scheduled_seq_groups) == ["0"]
    assert ids(scheduler.waiting) == ["1"]
