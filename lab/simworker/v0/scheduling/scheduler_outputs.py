"""The scheduler's decision for one step.

Source: the output classes in `vllm/core/scheduler.py`, and `SequenceGroupMetadata` in
`vllm/sequence.py`, of 0.9.2.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from warmpath.lab.simworker.v0.device import BlockPairs
from warmpath.lab.simworker.v0.requests.lora import LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup


@dataclass(slots=True)
class ScheduledSequenceGroup:
    """A group that the step computes."""

    seq_group: SequenceGroup
    token_chunk_size: int
    """Tokens of each of its sequences: 1 in decoding; in a prefill, cached ones included."""


@dataclass(slots=True)
class SchedulerPrefillOutputs:
    """The groups from the waiting queue: new prompts, and groups that were preempted by recompute."""

    seq_groups: list[ScheduledSequenceGroup] = field(default_factory=list)
    ignored_seq_groups: list[SequenceGroup] = field(default_factory=list)
    """Groups that can never be computed."""
    num_lookahead_slots: int = 0


@dataclass(slots=True)
class SchedulerRunningOutputs:
    """The groups from the running queue: decodes, and prefills that began in an earlier step."""

    decode_seq_groups: list[ScheduledSequenceGroup] = field(default_factory=list)
    prefill_seq_groups: list[ScheduledSequenceGroup] = field(default_factory=list)
    preempted: list[SequenceGroup] = field(default_factory=list)
    """Groups to recompute, in the order of their preemption."""
    swapped_out: list[SequenceGroup] = field(default_factory=list)
    blocks_to_swap_out: BlockPairs = field(default_factory=list)
    blocks_to_copy: BlockPairs = field(default_factory=list)
    num_lookahead_slots: int = 0

    @property
    def num_preempted(self) -> int:
        """Groups preempted by recompute or swap."""
        return len(self.preempted) + len(self.swapped_out)


@dataclass(slots=True)
class SchedulerSwappedInOutputs:
    """The groups from the swapped queue: those swapped in, and those that cannot be."""

    decode_seq_groups: list[ScheduledSequenceGroup] = field(default_factory=list)
    prefill_seq_groups: list[ScheduledSequenceGroup] = field(default_factory=list)
    blocks_to_swap_in: BlockPairs = field(default_factory=list)
    blocks_to_copy: BlockPairs = field(default_factory=list)
    num_lookahead_slots: int = 0
    infeasible_seq_groups: list[SequenceGroup] = field(default_factory=list)
    """Groups that no longer fit even into an empty GPU."""


@dataclass(slots=True)
class SchedulerOutputs:
    """The step: the groups that it computes, and the blocks that are moved before.

    Before the model runs, blocks are swapped out, then copied, then swapped in
    (`lab/simworker/v0/engine.py`). No step swaps both ways: swapping in could overwrite blocks that
    swapping out frees.
    """

    scheduled_seq_groups: list[ScheduledSequenceGroup]
    """Groups to compute: prefills, then decodes; with adapters, each part in the order of these."""
    num_prefill_groups: int
    num_batched_tokens: int
    """Tokens of the step, cached ones included."""
    blocks_to_swap_in: BlockPairs
    """Pairs of (CPU block, GPU block)."""
    blocks_to_swap_out: BlockPairs
    """Pairs of (GPU block, CPU block)."""
    blocks_to_copy: BlockPairs
    """Pairs of (GPU block, GPU block)."""
    ignored_seq_groups: list[SequenceGroup]
    num_lookahead_slots: int
    running_queue_size: int
    preempted: int
    """Groups preempted for lack of blocks, by recompute and by swap."""

    def __post_init__(self) -> None:
        assert not (self.blocks_to_swap_in and self.blocks_to_swap_out)
        if self.num_loras:
            self.scheduled_seq_groups = sorted(self.scheduled_seq_groups, key=self._lora_order)

    @property
    def lora_requests(self) -> set[LoRARequest]:
        groups = (scheduled.seq_group for scheduled in self.scheduled_seq_groups)
        return {group.lora_request for group in groups if group.lora_request is not None}

    @property
    def num_loras(self) -> int:
        return len(self.lora_requests)

    def _lora_order(self, scheduled: ScheduledSequenceGroup) -> tuple[bool, int, str]:
        group = scheduled.seq_group
        mixed = 0 < self.num_prefill_groups < len(self.scheduled_seq_groups)
        return mixed and not group.is_prefill(), group.lora_int_id, group.request_id


@dataclass(slots=True)
class SequenceGroupMetadata:
    """The scheduler's message to the worker about one group."""

    request_id: str
    is_prompt: bool
    block_tables: dict[int, list[int]]
    """Sequence id -> blocks on the GPU."""
    do_sample: bool = True
    """Whether a token is sampled: not for a prefill that does not end with this step."""
    token_chunk_size: int = 1
    computed_block_nums: Items[int] = ()
    """The leading blocks whose content is computed already: the model starts after them."""
