"""Preempting running groups for a waiting group that comes before them.

Source: `Scheduler._schedule_priority_preemption` in `vllm/core/scheduler.py` of 0.9.2.
"""

from warmpath.lab.simworker.v0.interfaces import AllocStatus, BlockPairs
from warmpath.lab.simworker.v0.requests.sequence import SequenceStatus
from warmpath.lab.simworker.v0.scheduling.queues import by_priority, get_priority
from warmpath.lab.simworker.v0.scheduling.scheduler_state import SchedulerState
from warmpath.lab.simworker.v0.scheduling.scheduling_budget import SchedulingBudget


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
