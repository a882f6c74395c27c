"""The state of scheduling: the queues and the block manager, and moving a group between queues.

Source: `Scheduler` in `vllm/core/scheduler.py` of 0.9.2, whose method names are kept.
"""

import enum
import time
from collections.abc import Callable

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.device import BlockPairs
from warmpath.lab.simworker.v0.requests.lora import LoRAConfig
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.new_tokens import NewTokens
from warmpath.lab.simworker.v0.scheduling.queues import SequenceGroupQueues
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig


class PreemptionMode(enum.Enum):
    """The two ways to preempt a group for lack of blocks."""

    SWAP = enum.auto()
    """The group's blocks are copied to the CPU, and back later."""
    RECOMPUTE = enum.auto()
    """The group's blocks are freed, and it is computed again from its first token."""


class SchedulerState(SequenceGroupQueues):
    """Queues, blocks and counters. `clock` returns seconds on the scale of arrival times."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        lora_config: LoRAConfig | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        for name in ("num_gpu_blocks", "num_cpu_blocks"):
            blocks = getattr(cache_config, name)
            if blocks is None or blocks < 0:
                raise ValueError(f"{name} {blocks} is not a number of blocks, at least 0")
        self.scheduler_config = scheduler_config
        self.cache_config = cache_config
        self.lora_config = lora_config
        self.num_cumulative_preemption = 0
        """Groups preempted since the start, those preempted by priority included."""
        self.prev_time = 0.0
        self.prev_prompt = False
        """Whether the last step computed new prompts."""
        self.last_prompt_latency = 0.0
        """Seconds from the last step with new prompts to the one after it."""
        self.block_manager = BlockManager(
            block_size=cache_config.block_size,
            num_gpu_blocks=cache_config.num_gpu_blocks or 0,
            num_cpu_blocks=cache_config.num_cpu_blocks or 0,
            sliding_window=cache_config.sliding_window,
            enable_caching=bool(cache_config.enable_prefix_caching),
        )
        self._new_tokens = NewTokens(scheduler_config, cache_config, self.block_manager)
        self._clock = clock
        self._finished_requests_ids: list[str] = []

    @property
    def lora_enabled(self) -> bool:
        return self.lora_config is not None

    def fork_seq(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Let a child share its parent's blocks; the first to write to the last block gets a copy."""
        self.block_manager.fork(parent_seq, child_seq)

    def free_seq(self, seq: Sequence) -> None:
        self.block_manager.free(seq)

    def remove_seq_from_computed_blocks_tracker(
        self, seq_group: SequenceGroup, status: SequenceStatus | None
    ) -> None:
        """Forget the look-up in the prefix cache for a group that is not scheduled after all."""
        for seq in seq_group.get_seqs(status=status):
            self.block_manager.remove_seq_from_computed_blocks_tracker(seq)

    def check(self) -> None:
        self.check_queues()
        self.block_manager.check()
        tables = self.block_manager.block_tables
        holding = {
            seq.seq_id
            for group in (*self.running, *self.swapped)
            for seq in group.seqs
            if not seq.is_finished()
        }
        if missing := holding - tables.keys():
            raise BrokenInvariantError(f"no blocks for the sequences {sorted(missing)}")
        # A sequence that has ended keeps its blocks until `free_finished_seq_groups`.
        ended = {seq.seq_id for group in self.groups() for seq in group.get_finished_seqs()}
        if leaked := tables.keys() - holding - ended:
            raise BrokenInvariantError(f"blocks of the sequences {sorted(leaked)} are leaked")

    def _get_num_lookahead_slots(self, *, is_prefill: bool, enable_chunking: bool) -> int:
        slots = self.scheduler_config.num_lookahead_slots
        if not is_prefill:
            return slots
        # A prompt that the first of several steps computes whole decodes in the others.
        return slots + 1 if self.scheduler_config.is_multi_step and enable_chunking else 0

    def _lacks_lora_room(self, seq_group: SequenceGroup, curr_loras: set[int] | None) -> bool:
        """Whether a step with these adapters has no room for the group's."""
        if self.lora_config is None or curr_loras is None or seq_group.lora_int_id == 0:
            return False
        full = len(curr_loras) >= self.lora_config.max_loras
        return full and seq_group.lora_int_id not in curr_loras

    def _allocate_and_set_running(self, seq_group: SequenceGroup) -> None:
        self.block_manager.allocate(seq_group)
        for seq in seq_group.get_seqs(status=SequenceStatus.WAITING):
            seq.status = SequenceStatus.RUNNING

    def _can_append_slots(self, seq_group: SequenceGroup, *, enable_chunking: bool) -> bool:
        slots = self._get_num_lookahead_slots(
            is_prefill=seq_group.is_prefill(), enable_chunking=enable_chunking
        )
        return self.block_manager.can_append_slots(seq_group=seq_group, num_lookahead_slots=slots)

    def _append_slots(
        self, seq_group: SequenceGroup, blocks_to_copy: BlockPairs, *, enable_chunking: bool
    ) -> None:
        slots = self._get_num_lookahead_slots(
            is_prefill=seq_group.is_prefill(), enable_chunking=enable_chunking
        )
        for seq in seq_group.get_seqs(status=SequenceStatus.RUNNING):
            blocks_to_copy.extend(self.block_manager.append_slots(seq, slots))

    def _preempt(self, seq_group: SequenceGroup, blocks_to_swap_out: BlockPairs) -> PreemptionMode:
        """Take a running group's blocks. Raises RuntimeError if they do not fit on the CPU."""
        self.num_cumulative_preemption += 1
        seq_group.num_preemptions += 1
        mode = self._preemption_mode(seq_group)
        if mode is PreemptionMode.SWAP:
            self._swap_out(seq_group, blocks_to_swap_out)
        else:
            self._preempt_by_recompute(seq_group)
        return mode

    def _preemption_mode(self, seq_group: SequenceGroup) -> PreemptionMode:
        wanted = self.scheduler_config.preemption_mode
        if wanted is None:
            # A prefill computes one sequence: the outputs of several could not be recomputed.
            several = seq_group.get_max_num_running_seqs() > 1
            return PreemptionMode.SWAP if several else PreemptionMode.RECOMPUTE
        return PreemptionMode.SWAP if wanted == "swap" else PreemptionMode.RECOMPUTE

    def _preempt_by_recompute(self, seq_group: SequenceGroup) -> None:
        seqs = seq_group.get_seqs(status=SequenceStatus.RUNNING)
        if len(seqs) != 1:
            raise RuntimeError(
                f'preemption_mode "recompute" cannot preempt group {seq_group.request_id}, which '
                f"has {len(seqs)} sequences: the limit is 1"
            )
        seqs[0].status = SequenceStatus.WAITING
        self.free_seq(seqs[0])
        seqs[0].reset_state_for_recompute()

    def _swap_in(self, seq_group: SequenceGroup, blocks_to_swap_in: BlockPairs) -> None:
        blocks_to_swap_in.extend(self.block_manager.swap_in(seq_group))
        for seq in seq_group.get_seqs(status=SequenceStatus.SWAPPED):
            seq.status = SequenceStatus.RUNNING

    def _swap_out(self, seq_group: SequenceGroup, blocks_to_swap_out: BlockPairs) -> None:
        if not self.block_manager.can_swap_out(seq_group):
            raise RuntimeError(
                f"no room to swap out group {seq_group.request_id}: "
                f"{self.block_manager.get_num_free_cpu_blocks()} of num_cpu_blocks "
                f"{self.cache_config.num_cpu_blocks} are free"
            )
        blocks_to_swap_out.extend(self.block_manager.swap_out(seq_group))
        for seq in seq_group.get_seqs(status=SequenceStatus.RUNNING):
            seq.status = SequenceStatus.SWAPPED
