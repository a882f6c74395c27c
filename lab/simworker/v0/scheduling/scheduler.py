"""vLLM v0's scheduler: three queues, two policies, two ways to preempt.

Source: `Scheduler` in `vllm/core/scheduler.py` of 0.9.2, with its constructor and method names.

- The default policy computes either prompts or decodes in a step: prompts as long as no group is
  swapped; if there are none, the running groups, and if all of these could go on, swapped ones.
- The chunked policy fills a step with running decodes and prefills, then with swapped groups, then
  with new prompts; the last prompt is cut to the tokens that are left.
- If there are too few blocks, the last of the running groups is preempted. A group of one sequence is
  recomputed and goes to the front of the waiting queue; one of several is swapped to the CPU.

Left out: 0.9.2's asynchronous output processing, pipeline parallelism, and the code for texts,
embeddings, media and metrics of time.
"""

from collections.abc import Iterable

from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.new_tokens import PartialPrefillMetadata
from warmpath.lab.simworker.v0.scheduling.queues import SchedulingBudget
from warmpath.lab.simworker.v0.scheduling.schedule_prefills import PrefillScheduling
from warmpath.lab.simworker.v0.scheduling.schedule_running import (
    PriorityPreemption,
    RunningScheduling,
    SwappedScheduling,
)
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerOutputs,
    SchedulerPrefillOutputs,
    SchedulerRunningOutputs,
    SchedulerSwappedInOutputs,
    SequenceGroupMetadata,
)


class Scheduler(PrefillScheduling, RunningScheduling, SwappedScheduling, PriorityPreemption):
    """Decides, step by step, which groups to compute, and which blocks to move before that."""

    def schedule(self) -> tuple[list[SequenceGroupMetadata], SchedulerOutputs, bool]:
        """Decide the next step, and give its groups their blocks.

        Returns the worker's metadata of each group, the decision, and whether its outputs may be
        processed during the next step, which is never true.
        """
        outputs = self._schedule()
        now = self._clock()
        metadata = [self._metadata(scheduled, now) for scheduled in outputs.scheduled_seq_groups]
        # The model will have computed them before the next step is scheduled.
        for scheduled in outputs.scheduled_seq_groups:
            self.block_manager.mark_blocks_as_computed(
                scheduled.seq_group, scheduled.token_chunk_size
            )
        # 0.9.2 never frees the CPU blocks of groups that turn out infeasible when swapped in.
        for group in outputs.ignored_seq_groups:
            self._free_finished_seqs(group)
        return metadata, outputs, False

    def abort_seq_group(self, request_id: str | Iterable[str]) -> None:
        """Drop one request, or several, from whichever queue; unknown ones are ignored."""
        request_ids = {request_id} if isinstance(request_id, str) else set(request_id)
        for group in self.take_out(request_ids):
            self._finished_requests_ids.append(group.request_id)
            for seq in group.get_seqs():
                if not seq.is_finished():
                    seq.status = SequenceStatus.FINISHED_ABORTED
                self.free_seq(seq)

    def free_finished_seq_groups(self) -> None:
        """Free the blocks of all sequences that have ended, and drop groups that have ended."""
        for group in self.running:
            self._free_finished_seqs(group)
            if group.is_finished():
                self._finished_requests_ids.append(group.request_id)
        unfinished = [group for group in self.running if not group.is_finished()]
        self.running.clear()
        self.running.extend(unfinished)

    def get_and_reset_finished_requests_ids(self) -> list[str]:
        """Return the ids of the requests that ended since the last call, and forget them."""
        finished, self._finished_requests_ids = self._finished_requests_ids, []
        return finished

    def _free_finished_seqs(self, seq_group: SequenceGroup) -> None:
        for seq in seq_group.get_finished_seqs():
            self.free_seq(seq)

    def _schedule(self) -> SchedulerOutputs:
        if self.scheduler_config.enable_chunked_prefill:
            return self._schedule_chunked_prefill()
        return self._schedule_default()

    def _new_budget(self) -> SchedulingBudget:
        return SchedulingBudget(
            token_budget=self.scheduler_config.max_num_batched_tokens,
            max_num_seqs=self.scheduler_config.max_num_seqs,
        )

    def _schedule_default(self) -> SchedulerOutputs:
        budget = self._new_budget()
        for group in self.running:
            budget.add_num_seqs(group.request_id, group.get_max_num_running_seqs())
        curr_loras: set[int] | None = None
        if self.lora_enabled:
            curr_loras = {group.lora_int_id for group in self.running if group.lora_int_id > 0}
        prefills = SchedulerPrefillOutputs()
        running = SchedulerRunningOutputs()
        swapped_in = SchedulerSwappedInOutputs()
        if not self.swapped:
            prefills = self._schedule_prefills(budget, curr_loras)
        if not prefills.seq_groups:
            if self.scheduler_config.policy == "priority":
                self._schedule_priority_preemption(budget)
            running = self._schedule_running(budget, curr_loras)
            if running.num_preempted == 0:
                swapped_in = self._schedule_swapped(budget, curr_loras)
        budget.check()
        assert not running.prefill_seq_groups
        assert not swapped_in.prefill_seq_groups
        self._put_back(running)
        self.running.extend(_groups(prefills.seq_groups))
        self.running.extend(_groups(running.decode_seq_groups))
        self.running.extend(_groups(swapped_in.decode_seq_groups))
        return self._outputs(budget, prefills, running, swapped_in, running.num_lookahead_slots)

    def _schedule_chunked_prefill(self) -> SchedulerOutputs:
        budget = self._new_budget()
        curr_loras: set[int] = set()
        partial_prefills = PartialPrefillMetadata.from_queues(
            running=self.running, waiting=self.waiting, scheduler_config=self.scheduler_config
        )
        running = self._schedule_running(
            budget, curr_loras, enable_chunking=True, partial_prefill_metadata=partial_prefills
        )
        swapped_in = SchedulerSwappedInOutputs()
        if running.num_preempted == 0:
            swapped_in = self._schedule_swapped(budget, curr_loras)
        prefills = self._schedule_prefills(
            budget, curr_loras, enable_chunking=True, partial_prefill_metadata=partial_prefills
        )
        budget.check()
        self._put_back(running)
        # Groups that decode in the next step stand before those still in their prefill.
        self.running.extend(_groups(swapped_in.decode_seq_groups))
        self.running.extend(_groups(swapped_in.prefill_seq_groups))
        self.running.extend(_groups(running.decode_seq_groups))
        self.running.extend(_groups(_finishing_first(running.prefill_seq_groups)))
        self.running.extend(_groups(prefills.seq_groups))
        decodes = running.decode_seq_groups or swapped_in.decode_seq_groups
        speculates = decodes or self.scheduler_config.is_multi_step
        slots = running.num_lookahead_slots if speculates else 0
        return self._outputs(budget, prefills, running, swapped_in, slots)

    def _put_back(self, running: SchedulerRunningOutputs) -> None:
        self.waiting.extendleft(running.preempted)
        self.swapped.extend(running.swapped_out)

    def _outputs(
        self,
        budget: SchedulingBudget,
        prefills: SchedulerPrefillOutputs,
        running: SchedulerRunningOutputs,
        swapped_in: SchedulerSwappedInOutputs,
        num_lookahead_slots: int,
    ) -> SchedulerOutputs:
        prefilling = [
            *prefills.seq_groups,
            *running.prefill_seq_groups,
            *swapped_in.prefill_seq_groups,
        ]
        return SchedulerOutputs(
            scheduled_seq_groups=[
                *prefilling,
                *running.decode_seq_groups,
                *swapped_in.decode_seq_groups,
            ],
            num_prefill_groups=len(prefilling),
            num_batched_tokens=budget.num_batched_tokens + budget.num_cached_tokens,
            blocks_to_swap_in=swapped_in.blocks_to_swap_in,
            blocks_to_swap_out=running.blocks_to_swap_out,
            blocks_to_copy=[*running.blocks_to_copy, *swapped_in.blocks_to_copy],
            ignored_seq_groups=[*prefills.ignored_seq_groups, *swapped_in.infeasible_seq_groups],
            num_lookahead_slots=num_lookahead_slots,
            running_queue_size=len(self.running),
            preempted=running.num_preempted,
        )

    def _metadata(self, scheduled: ScheduledSequenceGroup, now: float) -> SequenceGroupMetadata:
        group = scheduled.seq_group
        seqs = group.get_seqs(status=SequenceStatus.RUNNING)
        for seq in seqs:
            self.block_manager.access_all_blocks_in_seq(seq, now)
        computed: Iterable[int] = ()
        if self.cache_config.enable_prefix_caching:
            computed = self.block_manager.get_common_computed_block_ids(seqs)
        left = group.first_unfinished_seq.get_num_uncomputed_tokens()
        return SequenceGroupMetadata(
            request_id=group.request_id,
            is_prompt=group.is_prefill(),
            block_tables={seq.seq_id: self.block_manager.get_block_table(seq) for seq in seqs},
            do_sample=not group.is_prefill() or scheduled.token_chunk_size >= left,
            token_chunk_size=scheduled.token_chunk_size,
            computed_block_nums=list(computed),
        )


def _groups(scheduled: Iterable[ScheduledSequenceGroup]) -> list[SequenceGroup]:
    return [each.seq_group for each in scheduled]


def _finishing_first(prefills: list[ScheduledSequenceGroup]) -> list[ScheduledSequenceGroup]:
    """Order prefills: those that decode in the next step come first."""
    return sorted(
        prefills,
        key=lambda each: each.seq_group.get_num_uncomputed_tokens() > each.token_chunk_size,
    )
