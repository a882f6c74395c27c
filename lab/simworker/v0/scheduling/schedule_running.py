"""Scheduling the running and the swapped queue: which groups (requests) go on, are preempted, come back.

Source: `_schedule_running`, `_schedule_priority_preemption` and `_schedule_swapped` of `Scheduler` in
`vllm/core/scheduler.py` of 0.9.2.
"""

from warmpath.lab.simworker.v0.device import AllocStatus, BlockPairs
from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.new_tokens import PartialPrefillMetadata
from warmpath.lab.simworker.v0.scheduling.queues import SchedulingBudget, by_priority, get_priority
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerRunningOutputs,
    SchedulerSwappedInOutputs,
)
from warmpath.lab.simworker.v0.scheduling.scheduler_state import PreemptionMode, SchedulerState


class RunningScheduling(SchedulerState):
    """Schedules decodes, and with chunked prefill the prefills under way."""

    def _schedule_running(
        self,
        budget: SchedulingBudget,
        curr_loras: set[int] | None,
        enable_chunking: bool = False,
        partial_prefill_metadata: PartialPrefillMetadata | None = None,
    ) -> SchedulerRunningOutputs:
        """Give each running group, in order, the slots for its new tokens.

        If there are too few blocks, the groups at the queue's end are preempted, at last the group
        itself. Groups that are scheduled or preempted leave the queue; those for which the budget has no
        token left stay in it.
        """
        outputs = SchedulerRunningOutputs(
            num_lookahead_slots=self._get_num_lookahead_slots(
                is_prefill=False, enable_chunking=enable_chunking
            )
        )
        while self.running:
            group = self.running[0]
            # Cached tokens were counted when the prefill began.
            uncached, _ = self._new_tokens.count(
                group,
                SequenceStatus.RUNNING,
                budget,
                enable_chunking=enable_chunking,
                partial_prefill_metadata=partial_prefill_metadata,
            )
            # 0.9.2 lets a group of several sequences overdraw the budget, and fails its assertion.
            if uncached == 0 or uncached > budget.remaining_token_budget():
                break
            self.running.popleft()
            if self._make_room(group, budget, curr_loras, outputs, enable_chunking=enable_chunking):
                self._append_slots(group, outputs.blocks_to_copy, enable_chunking=enable_chunking)
                if group.is_prefill():
                    outputs.prefill_seq_groups.append(ScheduledSequenceGroup(group, uncached))
                else:
                    outputs.decode_seq_groups.append(ScheduledSequenceGroup(group, 1))
                budget.add_num_batched_tokens(group.request_id, uncached)
                if enable_chunking:
                    # The default policy has counted its running sequences beforehand.
                    budget.add_num_seqs(group.request_id, group.get_max_num_running_seqs())
                if curr_loras is not None and group.lora_int_id > 0:
                    curr_loras.add(group.lora_int_id)
        return outputs

    def _make_room(
        self,
        group: SequenceGroup,
        budget: SchedulingBudget,
        curr_loras: set[int] | None,
        outputs: SchedulerRunningOutputs,
        *,
        enable_chunking: bool,
    ) -> bool:
        """Preempt groups until this one's new tokens fit; return False if it was preempted itself.

        As in 0.9.2, a preemption gives this group's share back to the budget and the adapters, whichever
        group is preempted; so no group takes a preempted one's place in the same step.
        """
        while not self._can_append_slots(group, enable_chunking=enable_chunking):
            budget.subtract_num_seqs(group.request_id, group.get_max_num_running_seqs())
            if curr_loras is not None:
                curr_loras.discard(group.lora_int_id)
            victim = self.running.pop() if self.running else group
            if self._preempt(victim, outputs.blocks_to_swap_out) is PreemptionMode.RECOMPUTE:
                outputs.preempted.append(victim)
            else:
                outputs.swapped_out.append(victim)
            if victim is group:
                return False
        return True


class PriorityPreemption(SchedulerState):
    """Preemption by priority; the default policy calls it."""

    def _schedule_priority_preemption(self, budget: SchedulingBudget) -> int:
        """Sort running groups, preempt the last of them for the first waiting one, sort waiting ones.

        Only groups that come after it are preempted, and only as many as it needs; it starts in a later
        step. Returns the number of preempted groups. A group of several sequences goes on running: it
        could only be swapped, and 0.9.2 loses the blocks that it swaps here.
        """
        self.running = by_priority(self.running)
        preempted = 0
        if self.waiting:
            group = self.waiting.popleft()
            uncached, _ = self._new_tokens.count(
                group, SequenceStatus.WAITING, budget, enable_chunking=False
            )
            while (
                self.running
                and get_priority(self.running[-1]) > get_priority(group)
                and self.running[-1].get_max_num_running_seqs() == 1
            ):
                fits = self.block_manager.can_allocate(group) is AllocStatus.OK
                if fits and budget.can_schedule(
                    num_new_tokens=uncached, num_new_seqs=group.get_max_num_running_seqs()
                ):
                    break
                victim = self.running.pop()
                budget.subtract_num_seqs(victim.request_id, victim.get_max_num_running_seqs())
                nothing_swapped: BlockPairs = []
                self._preempt(victim, nothing_swapped)
                self.waiting.appendleft(victim)
                preempted += 1
            self.waiting.appendleft(group)
            self.remove_seq_from_computed_blocks_tracker(group, SequenceStatus.WAITING)
        self.waiting = by_priority(self.waiting)
        return preempted


class SwappedScheduling(SchedulerState):
    """Schedules sequence groups whose blocks were swapped to the CPU's memory."""

    def _schedule_swapped(
        self, budget: SchedulingBudget, curr_loras: set[int] | None, enable_chunking: bool = False
    ) -> SchedulerSwappedInOutputs:
        """Swap groups in, in order, until one does not fit.

        As in 0.9.2, no prefill is chunked here: one that was swapped out between two chunks comes back
        when its whole rest fits into a step, and never if the rest is larger than a step.
        """
        outputs = SchedulerSwappedInOutputs(
            num_lookahead_slots=self._get_num_lookahead_slots(
                is_prefill=False, enable_chunking=enable_chunking
            )
        )
        skipped: list[SequenceGroup] = []
        while self.swapped:
            group = self.swapped[0]
            is_prefill = group.is_prefill()
            slots = self._get_num_lookahead_slots(
                is_prefill=is_prefill, enable_chunking=enable_chunking
            )
            status = self.block_manager.can_swap_in(group, slots)
            if status is AllocStatus.LATER:
                break
            if status is AllocStatus.NEVER:
                for seq in group.get_seqs():
                    seq.status = SequenceStatus.FINISHED_IGNORED
                outputs.infeasible_seq_groups.append(self.swapped.popleft())
                continue
            if self._lacks_lora_room(group, curr_loras):
                skipped.append(self.swapped.popleft())
                continue
            uncached, cached = self._new_tokens.count(
                group, SequenceStatus.SWAPPED, budget, enable_chunking=enable_chunking
            )
            num_new_seqs = group.get_max_num_running_seqs()
            if uncached == 0 or not budget.can_schedule(
                num_new_tokens=uncached, num_new_seqs=num_new_seqs
            ):
                self.remove_seq_from_computed_blocks_tracker(group, SequenceStatus.SWAPPED)
                break
            self.swapped.popleft()
            if curr_loras is not None and group.lora_int_id > 0:
                curr_loras.add(group.lora_int_id)
            self._swap_in(group, outputs.blocks_to_swap_in)
            self._append_slots(group, outputs.blocks_to_copy, enable_chunking=enable_chunking)
            if is_prefill:
                scheduled = ScheduledSequenceGroup(group, uncached + cached)
                outputs.prefill_seq_groups.append(scheduled)
            else:
                outputs.decode_seq_groups.append(ScheduledSequenceGroup(group, 1))
            budget.add_num_batched_tokens(group.request_id, uncached, cached)
            budget.add_num_seqs(group.request_id, num_new_seqs)
        self.swapped.extendleft(reversed(skipped))
        return outputs
