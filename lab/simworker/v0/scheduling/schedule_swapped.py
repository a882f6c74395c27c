"""Scheduling the swapped queue: the choice of the groups that come back from the CPU.

Source: `Scheduler._schedule_swapped` in `vllm/core/scheduler.py` of 0.9.2.
"""

from warmpath.lab.simworker.v0.device import AllocStatus
from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerSwappedInOutputs,
)
from warmpath.lab.simworker.v0.scheduling.scheduler_state import SchedulerState
from warmpath.lab.simworker.v0.scheduling.scheduling_budget import SchedulingBudget


class SwappedScheduling(SchedulerState):
    """Schedules sequence groups whose blocks were swapped to the CPU's memory."""

    def _schedule_swapped(
        self,
        budget: SchedulingBudget,
        curr_loras: set[int] | None,
        enable_chunking: bool = False,
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
