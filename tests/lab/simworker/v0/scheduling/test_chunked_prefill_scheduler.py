"""The chunked policy: scenarios of vLLM 0.9.2's tests/core/test_chunked_prefill_scheduler.py."""

from typing import Any

import pytest

from tests.lab.simworker.v0.groups import (
    append,
    chunks,
    ids,
    make_group,
    make_groups,
    make_scheduler,
    run,
    step,
)
from warmpath.lab.simworker.v0.requests.sequence import SequenceStatus
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler


def make_chunked(tokens: int, **more: Any) -> Scheduler:
    return make_scheduler(max_num_batched_tokens=tokens, enable_chunked_prefill=True, **more)


def test_the_last_prompt_is_cut_to_what_is_left_and_goes_on_beside_decodes() -> None:
    scheduler = make_chunked(64)
    first, second = make_groups(scheduler, 60, 60)
    metadata, outputs = run(scheduler)
    assert chunks(outputs) == {"0": 60, "1": 4}
    assert [told.do_sample for told in metadata] == [True, False]
    assert (outputs.num_prefill_groups, outputs.num_batched_tokens) == (2, 64)
    assert not first.is_prefill()
    assert second.is_prefill()
    append(first)
    metadata, outputs = run(scheduler)
    assert list(chunks(outputs).items()) == [("1", 56), ("0", 1)]
    assert [told.is_prompt for told in metadata] == [True, False]
    assert (outputs.num_prefill_groups, outputs.num_batched_tokens) == (1, 57)


def test_new_prompts_come_after_prefills_under_way_and_before_them_in_the_batch() -> None:
    scheduler = make_chunked(64)
    make_groups(scheduler, 60, 60)
    step(scheduler)
    scheduler.add_seq_group(make_group("2", 60))
    scheduler.add_seq_group(make_group("3", 60))
    assert list(chunks(step(scheduler)).items()) == [("2", 7), ("1", 56), ("0", 1)]
    assert ids(scheduler.running) == ["0", "1", "2"]


def test_decodes_are_served_before_anything_else() -> None:
    scheduler = make_chunked(2, max_num_seqs=2, max_model_len=8)
    make_groups(scheduler, 2, 2, 2)
    assert chunks(step(scheduler)) == {"0": 2}
    assert list(chunks(step(scheduler)).items()) == [("1", 1), ("0", 1)]
    assert list(chunks(step(scheduler)).items()) == [("1", 1), ("0", 1)]
    outputs = step(scheduler)
    assert chunks(outputs) == {"0": 1, "1": 1}
    assert outputs.num_prefill_groups == 0
    scheduler.abort_seq_group("0")
    assert list(chunks(step(scheduler)).items()) == [("2", 1), ("1", 1)]


def test_a_prompt_may_be_longer_than_a_step_but_not_than_the_model_takes() -> None:
    scheduler = make_chunked(32, max_model_len=64)
    make_groups(scheduler, 48)
    assert chunks(step(scheduler)) == {"0": 32}
    scheduler = make_chunked(64, max_model_len=32)
    (long,) = make_groups(scheduler, 48)
    assert step(scheduler).ignored_seq_groups == [long]


def test_a_prefill_under_way_can_be_preempted_and_starts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = make_chunked(30)
    (group,) = make_groups(scheduler, 60)
    step(scheduler)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler.block_manager, "can_append_slots", lambda **_: False)
        outputs = run(scheduler)[1]
    # It is preempted, and with the chunked policy scheduled again by the same step.
    assert outputs.preempted == 1
    assert group.num_preemptions == 1
    scheduler.check()
    while group.is_prefill():
        outputs = step(scheduler)
    assert chunks(outputs) == {"0": 30}
    assert group.first_seq.get_num_computed_tokens() == 60


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


def test_no_more_sequences_run_than_allowed_however_many_tokens_are_left() -> None:
    scheduler = make_chunked(64, max_num_seqs=2)
    make_groups(scheduler, 65, 65, 65)
    assert chunks(step(scheduler)) == {"0": 64}
    assert chunks(step(scheduler)) == {"0": 1, "1": 63}
    outputs = step(scheduler)
    assert list(chunks(outputs).items()) == [("1", 2), ("0", 1)]
    assert outputs.num_batched_tokens == 3


def test_with_caching_a_chunk_ends_with_a_full_block() -> None:
    scheduler = make_chunked(64, caching=True)
    make_groups(scheduler, 50, 50)
    outputs = step(scheduler)
    assert chunks(outputs) == {"0": 50, "1": 12}
    assert outputs.num_batched_tokens == 62


def test_nothing_new_starts_beside_a_prefill_that_takes_all_tokens_even_if_it_is_cached() -> None:
    scheduler = make_chunked(4, caching=True, max_num_seqs=3)
    tokens = list(range(12))
    scheduler.add_seq_group(make_group("0", tokens))
    assert chunks(step(scheduler)) == {"0": 4}
    scheduler.add_seq_group(make_group("1", tokens))
    assert chunks(step(scheduler)) == {"0": 4}
    assert chunks(step(scheduler)) == {"0": 4}
    assert "1" not in chunks(step(scheduler))


def test_partial_prefills_share_a_step_evenly() -> None:
    scheduler = make_chunked(64, max_num_partial_prefills=2, max_model_len=2000)
    make_groups(scheduler, 60, 60)
    assert chunks(step(scheduler)) == {"0": 32, "1": 32}
    assert chunks(step(scheduler)) == {"0": 28, "1": 28}


def test_long_prompts_run_one_at_a_time() -> None:
    scheduler = make_chunked(64, gpu=900, max_num_partial_prefills=2, max_model_len=2000)
    make_groups(scheduler, 1200, 1200)
    assert chunks(step(scheduler)) == {"0": 64}


def test_short_prompts_overtake_long_ones() -> None:
    scheduler = make_chunked(64, gpu=900, max_num_partial_prefills=2, max_model_len=2000)
    make_groups(scheduler, 1200, 1200, 40, 40)
    assert chunks(step(scheduler)) == {"0": 32, "2": 32}
    assert ids(scheduler.waiting) == ["1", "3"]
    assert chunks(step(scheduler)) == {"3": 24, "0": 32, "2": 8}
    assert ids(scheduler.running) == ["2", "0", "3"]
    assert chunks(step(scheduler)) == {"0": 32, "3": 16, "2": 1}
    assert chunks(step(scheduler)) == {"0": 62, "2": 1, "3": 1}


def test_with_caching_partial_prefills_are_cut_to_full_blocks() -> None:
    scheduler = make_chunked(60, caching=True, max_num_partial_prefills=2, max_model_len=8000)
    make_groups(scheduler, 50, 50)
    assert chunks(step(scheduler)) == {"0": 28, "1": 28}
    assert chunks(step(scheduler)) == {"0": 22, "1": 22}


@pytest.mark.parametrize(("steps", "expected"), [(1, 0), (5, 4)])
def test_a_step_of_prompts_speculates_only_with_several_steps(steps: int, expected: int) -> None:
    scheduler = make_chunked(30, num_lookahead_slots=4, num_scheduler_steps=steps)
    (group,) = make_groups(scheduler, 30)
    assert step(scheduler).num_lookahead_slots == expected
    # With several steps the prompt's sequence gets room for what the others will decode.
    blocks = len(scheduler.block_manager.get_block_table(group.first_seq))
    assert blocks == (8 if steps == 1 else 9)


def test_with_several_steps_a_prompt_is_never_cut() -> None:
    scheduler = make_chunked(30, num_lookahead_slots=4, num_scheduler_steps=5)
    _, _, long = make_groups(scheduler, 20, 20, 31)
    assert chunks(step(scheduler)) == {"0": 20}
    outputs = step(scheduler)
    assert chunks(outputs) == {"0": 1, "1": 20}
    assert outputs.ignored_seq_groups == [long]
