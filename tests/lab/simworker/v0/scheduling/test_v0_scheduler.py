"""The scheduler: scenarios of vLLM 0.9.2's own tests of both policies, in our words, and its checks."""

from collections.abc import Callable

import pytest

from tests.lab.simworker.v0.groups import (
    chunks,
    fork,
    ids,
    make_group,
    make_groups,
    make_scheduler,
    run,
    start,
    step,
)
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.device import AllocStatus
from warmpath.lab.simworker.v0.requests.sequence import SequenceStatus
from warmpath.lab.simworker.v0.scheduling.queues import SchedulingBudget, SequenceGroupQueues
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig


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


def test_a_prefill_under_way_can_be_swapped_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(
        max_num_batched_tokens=40, enable_chunked_prefill=True, preemption_mode="swap"
    )
    (group,) = make_groups(scheduler, 60)
    step(scheduler)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler.block_manager, "can_append_slots", lambda **_: False)
        outputs = run(scheduler)[1]
    assert len(outputs.blocks_to_swap_out) == 15
    assert group.first_seq.status is SequenceStatus.SWAPPED
    scheduler.add_seq_group(make_group("1", 60))
    outputs = step(scheduler)
    table = scheduler.block_manager.get_block_table(group.first_seq)
    assert [gpu for _, gpu in outputs.blocks_to_swap_in] == table
    assert list(chunks(outputs).items()) == [("1", 20), ("0", 20)]


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
        scheduler.running.append(group)
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
        scheduler.swapped.append(group)


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


def twice(queues: SequenceGroupQueues) -> None:
    queues.running.append(queues.waiting[0])


def of_one_id(queues: SequenceGroupQueues) -> None:
    queues.add_seq_group(make_group("0", 4))


def in_the_wrong_queue(queues: SequenceGroupQueues) -> None:
    queues.running.append(queues.waiting.popleft())


def waiting_with_several(queues: SequenceGroupQueues) -> None:
    queues.waiting[0].add(queues.waiting[0].first_seq.fork(9))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (twice, "queued twice"),
        (of_one_id, "one id"),
        (in_the_wrong_queue, "in the queue RUNNING"),
        (waiting_with_several, "waits with 2 sequences"),
    ],
)
def test_broken_queues_are_noticed(
    spoil: Callable[[SequenceGroupQueues], None], reason: str
) -> None:
    queues = SequenceGroupQueues()
    queues.add_seq_group(make_group("0", 4))
    queues.check_queues()
    spoil(queues)
    with pytest.raises(BrokenInvariantError, match=reason):
        queues.check_queues()


def test_a_request_counts_once_however_often_it_is_counted() -> None:
    budget = SchedulingBudget(token_budget=10, max_num_seqs=10)
    for _ in range(2):
        budget.add_num_batched_tokens("a", 3, 1)
        budget.add_num_seqs("a", 2)
    assert (budget.num_batched_tokens, budget.num_cached_tokens) == (3, 1)
    assert budget.num_curr_seqs == 2
    for _ in range(2):
        budget.subtract_num_seqs("a", 2)
    assert budget.num_curr_seqs == 0


@pytest.mark.parametrize(
    ("field", "reason"), [("num_batched_tokens", "tokens"), ("num_curr_seqs", "sequences")]
)
def test_totals_that_are_not_the_sum_or_over_a_limit_are_noticed(field: str, reason: str) -> None:
    budget = SchedulingBudget(token_budget=10, max_num_seqs=10)
    budget.check()
    setattr(budget, field, 1)
    with pytest.raises(BrokenInvariantError, match=f"1 {reason} counted"):
        budget.check()
    setattr(budget, field, 0)
    budget.add_num_batched_tokens("a", 11 if reason == "tokens" else 0)
    budget.add_num_seqs("a", 1 if reason == "tokens" else 11)
    with pytest.raises(BrokenInvariantError, match=f"11 {reason} (in|where)"):
        budget.check()
