"""Scheduling the waiting queue: the choice of the prompts that begin.

Source: `Scheduler._schedule_prefills` in `vllm/core/scheduler.py` of 0.9.2.
"""

import enum

from warmpath.lab.simworker.v0.device import AllocStatus, BlockPairs
from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.new_tokens import PartialPrefillMetadata
from warmpath.lab.simworker.v0.scheduling.queues import SchedulingBudget
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerPrefillOutputs,
)
from warmpath.lab.simworker.v0.scheduling.scheduler_state import SchedulerState


class _Verdict(enum.Enum):
    """The decision on the first waiting group."""

    TAKE = enum.auto()
    SKIP = enum.auto()
    """The group waits on in its place; groups behind it may start."""
    STOP = enum.auto()
    """The group waits on, and so do all behind it."""
    IGNORE = enum.auto()
    """The group can never be computed."""


class PrefillScheduling(SchedulerState):
    """New prompts, and groups preempted by recompute: both are prefills."""

    def _schedule_prefills(
        self,
        budget: SchedulingBudget,
        curr_loras: set[int] | None,
        enable_chunking: bool = False,
        partial_prefill_metadata: PartialPrefillMetadata | None = None,
    ) -> SchedulerPrefillOutputs:
        """Start waiting groups, in order, until one does not fit.

        Spends `budget`; adds to `curr_loras` the numbers of the adapters that the step needs.
        """
        outputs = SchedulerPrefillOutputs(
            num_lookahead_slots=self._get_num_lookahead_slots(
                is_prefill=True, enable_chunking=enable_chunking
            )
        )
        if budget.remaining_token_budget() == 0:
            return outputs
        skipped: list[SequenceGroup] = []
        while self._passed_delay(self._clock()) and self.waiting:
            group = self.waiting[0]
            waiting_seqs = group.get_seqs(status=SequenceStatus.WAITING)
            assert len(waiting_seqs) == 1, "a waiting group has a single prompt to compute"
            if partial_prefill_metadata and not partial_prefill_metadata.can_schedule(group):
                skipped.append(self.waiting.popleft())
                continue
            uncached, cached = self._new_tokens.count(
                group,
                SequenceStatus.WAITING,
                budget,
                enable_chunking=enable_chunking,
                partial_prefill_metadata=partial_prefill_metadata,
            )
            verdict = self._judge(
                group, uncached, cached, budget=budget, curr_loras=curr_loras,
                num_lookahead_slots=outputs.num_lookahead_slots,
            )  # fmt: skip
            if verdict is not _Verdict.TAKE:
                self.remove_seq_from_computed_blocks_tracker(group, SequenceStatus.WAITING)
            if verdict is _Verdict.STOP:
                break
            self.waiting.popleft()
            if verdict is _Verdict.SKIP:
                skipped.append(group)
            elif verdict is _Verdict.IGNORE:
                waiting_seqs[0].status = SequenceStatus.FINISHED_IGNORED
                outputs.ignored_seq_groups.append(group)
            else:
                if curr_loras is not None and group.lora_int_id > 0:
                    curr_loras.add(group.lora_int_id)
                self._start(group, enable_chunking=enable_chunking)
                if partial_prefill_metadata:
                    partial_prefill_metadata.maybe_increment_partial_prefills(group)
                outputs.seq_groups.append(ScheduledSequenceGroup(group, uncached + cached))
                budget.add_num_batched_tokens(group.request_id, uncached, cached)
                budget.add_num_seqs(group.request_id, group.get_max_num_running_seqs())
        self.waiting.extendleft(reversed(skipped))
        if outputs.seq_groups:
            self.prev_prompt = True
        return outputs

    def _judge(
        self,
        group: SequenceGroup,
        uncached: int,
        cached: int,
        *,
        budget: SchedulingBudget,
        curr_loras: set[int] | None,
        num_lookahead_slots: int,
    ) -> _Verdict:
        if uncached + cached > self._new_tokens.prompt_limit:
            return _Verdict.IGNORE
        status = self.block_manager.can_allocate(group, num_lookahead_slots=num_lookahead_slots)
        if status is AllocStatus.LATER:
            return _Verdict.STOP
        if status is AllocStatus.NEVER:
            return _Verdict.IGNORE
        if self._lacks_lora_room(group, curr_loras):
            return _Verdict.SKIP
        # The step's limit holds even if the caller's budget is larger.
        if budget.num_batched_tokens >= self.scheduler_config.max_num_batched_tokens:
            return _Verdict.STOP
        if uncached == 0 or not budget.can_schedule(
            num_new_tokens=uncached, num_new_seqs=group.get_max_num_running_seqs()
        ):
            return _Verdict.STOP
        return _Verdict.TAKE

    def _start(self, group: SequenceGroup, *, enable_chunking: bool) -> None:
        self._allocate_and_set_running(group)
        if self.scheduler_config.is_multi_step and enable_chunking:
            blocks_to_copy: BlockPairs = []
            self._append_slots(group, blocks_to_copy, enable_chunking=enable_chunking)
            assert not blocks_to_copy, "no other sequence shares blocks just allocated"

    def _passed_delay(self, now: float) -> bool:
        if self.prev_prompt:
            self.last_prompt_latency = now - self.prev_time
        self.prev_time = now
        self.prev_prompt = False
        if self.scheduler_config.delay_factor == 0 or not self.waiting or not self.running:
            return True
        waited = now - min(group.arrival_time for group in self.waiting)
        return waited > self.scheduler_config.delay_factor * self.last_prompt_latency
