"""The chunked policy: scenarios of vLLM 0.9.2's tests/core/test_chunked_prefill_scheduler.py."""

from typing import Any

import pytest

from tests.lab.simworker.v0.groups import chunks, make_group, make_groups, make_scheduler, run, step
from warmpath.lab.simworker.v0.requests.sequence import SequenceStatus
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler


def make_chunked(tokens: int, **more: Any) -> Scheduler:
    return make_scheduler(max_num_batched_tokens=tokens, enable_chunked_prefill=True, **more)


def test_a_prefill_under_way_can_be_swapped_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_chunked(40, preemption_mode="swap")
    (group,) = make_groups(scheduler, 60)
    step(scheduler)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler.block_manager, "can_append_slots", lambda **_: False)
        outputs = run(scheduler)[1]
    assert outputs.is_empty() is False
    assert len(outputs.blocks_to_swap_out) == 15
    assert group.first_seq.status is SequenceStatus.SWAPPED
    scheduler.add_seq_group(make_group("1", 60))
    outputs = step(scheduler)
    assert outputs.blocks_to_swap_in == [(cpu, gpu) for gpu, cpu in outputs_of(scheduler, outputs)]
    assert list(chunks(outputs).items()) == [("1", 20), ("0", 20)]


def outputs_of(scheduler: Scheduler, outputs: Any) -> list[tuple[int, int]]:
    """Return the (GPU block, CPU block) pairs that a swap in must have had."""
    table = scheduler.block_manager.get_block_table(scheduler.running[0].first_seq)
    return list(zip(table, (cpu for cpu, _ in outputs.blocks_to_swap_in), strict=True))
