"""One stream of operations on a v0 scheduler, and the result of each step.

Operations, as lists:

    ["add", request id, [[first token, how many], ...], priority, adapter]
    ["fork", request id, parent's sequence id, child's sequence id]
    ["stop", sequence id]
    ["abort", request id]
    ["step", seconds, {sequence id: tokens generated, if not 1}]

A request's first sequence has the request's id. A step schedules, computes and generates; the tokens
are a function of sequence and position.
"""

from collections.abc import Callable
from typing import Any

from warmpath.lab.simworker.v0.requests.lora import LoRAConfig, LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig

CACHE_FIELDS = (
    "block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching", "sliding_window",
)  # fmt: skip


def build(config: dict[str, Any], clock: Callable[[], float]) -> Scheduler:
    limits = {name: value for name, value in config.items() if name not in CACHE_FIELDS}
    max_loras = limits.pop("max_loras")
    return Scheduler(
        SchedulerConfig(**limits),
        CacheConfig(**{name: config[name] for name in CACHE_FIELDS}),
        LoRAConfig(max_loras=max_loras) if max_loras else None,
        clock=clock,
    )


class SchedulerStream:
    """A scheduler, its sequences, and the clock."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.now = 0.0
        self.scheduler: Any = build(config, lambda: self.now)
        self.groups: dict[str, Any] = {}
        self.seqs: dict[int, Any] = {}
        self.tables: dict[int, list[int]] = {}

    def apply(self, operation: list[Any]) -> dict[str, Any] | None:
        """Apply one operation; return a step's result, and None for other operations."""
        kind, *arguments = operation
        return getattr(self, kind)(*arguments)

    def add(self, request_id: str, runs: list[list[int]], priority: int, adapter: int) -> None:
        tokens = [token for first, count in runs for token in range(first, first + count)]
        lora = None
        if adapter:
            lora = LoRARequest(lora_name=str(adapter), lora_int_id=adapter, lora_path="/adapter")
        seq = Sequence(int(request_id), tokens, self.config["block_size"], lora_request=lora)
        group = SequenceGroup(request_id, [seq], self.now, lora_request=lora, priority=priority)
        self.groups[request_id] = group
        self.seqs[seq.seq_id] = seq
        self.scheduler.add_seq_group(group)

    def fork(self, request_id: str, parent_id: int, child_id: int) -> None:
        parent = self.seqs[parent_id]
        child = parent.fork(child_id)
        self.groups[request_id].add(child)
        self.seqs[child_id] = child
        self.scheduler.fork_seq(parent, child)

    def stop(self, seq_id: int) -> None:
        self.seqs[seq_id].status = SequenceStatus.FINISHED_STOPPED
        self.scheduler.free_finished_seq_groups()

    def abort(self, request_id: str) -> None:
        self.scheduler.abort_seq_group(request_id)

    def step(self, now: float, generated: dict[str, int]) -> dict[str, Any]:
        self.now = now
        metadata, outputs, _ = self.scheduler.schedule()
        # The engine ends groups that the scheduler ignores; 0.9.2's scheduler keeps their blocks.
        for group in outputs.ignored_seq_groups:
            for seq in group.seqs:
                self.scheduler.free_seq(seq)
        result = {
            "groups": [
                scheduled.seq_group.request_id for scheduled in outputs.scheduled_seq_groups
            ],
            "told": [
                [told.token_chunk_size, int(told.is_prompt), int(told.do_sample)]
                for told in metadata
            ],
            "computed": [len(told.computed_block_nums) for told in metadata],
            "tables": self._changed_tables(metadata),
            "prefills": outputs.num_prefill_groups,
            "tokens": outputs.num_batched_tokens,
            "in": [list(pair) for pair in outputs.blocks_to_swap_in],
            "out": [list(pair) for pair in outputs.blocks_to_swap_out],
            "copy": [list(pair) for pair in outputs.blocks_to_copy],
            "ignored": [group.request_id for group in outputs.ignored_seq_groups],
            "lookahead": outputs.num_lookahead_slots,
            "running_size": outputs.running_queue_size,
            "preempted": outputs.preempted,
            "all_preempted": self.scheduler.num_cumulative_preemption,
        }
        self._compute(metadata, outputs, generated)
        self.scheduler.free_finished_seq_groups()
        result["finished"] = self.scheduler.get_and_reset_finished_requests_ids()
        for queue in ("waiting", "running", "swapped"):
            groups = getattr(self.scheduler, queue)
            result[queue] = [group.request_id for group in groups]
        manager = self.scheduler.block_manager
        result["free"] = [manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()]
        return result

    def _changed_tables(self, metadata: list[Any]) -> dict[str, list[int]]:
        changed = {}
        for told in metadata:
            for seq_id, table in told.block_tables.items():
                if self.tables.get(seq_id) != table:
                    self.tables[seq_id] = list(table)
                    changed[str(seq_id)] = list(table)
        return changed

    def _compute(self, metadata: list[Any], outputs: Any, generated: dict[str, int]) -> None:
        for scheduled, told in zip(outputs.scheduled_seq_groups, metadata, strict=True):
            scheduled.seq_group.update_num_computed_tokens(scheduled.token_chunk_size)
            if not told.do_sample:
                continue
            for seq in scheduled.seq_group.get_seqs(status=SequenceStatus.RUNNING):
                for count in range(generated.get(str(seq.seq_id), 1)):
                    if count:
                        seq.update_num_computed_tokens(1)
                    token = 1_000_000 + seq.seq_id * 1000 + seq.get_len()
                    seq.append_token_id(token)
                if seq.get_len() >= self.config["max_model_len"]:
                    seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
