"""Makes groups and schedulers, and plays the engine between two steps."""

from typing import Any

from warmpath.lab.simworker.v0.requests.lora import LoRAConfig, LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    SchedulerOutputs,
    SequenceGroupMetadata,
)

BLOCK_SIZE = 4


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_scheduler(
    *,
    gpu: int = 64,
    cpu: int = 64,
    caching: bool = False,
    loras: int = 0,
    clock: Clock | None = None,
    **limits: Any,
) -> Scheduler:
    cache = CacheConfig(BLOCK_SIZE, enable_prefix_caching=caching)
    cache.num_gpu_blocks, cache.num_cpu_blocks = gpu, cpu
    limits = {"max_num_batched_tokens": 100, "max_num_seqs": 10, "max_model_len": 100} | limits
    return Scheduler(
        SchedulerConfig(**limits),
        cache,
        LoRAConfig(max_loras=loras) if loras else None,
        clock=clock or Clock(),
    )


def make_group(
    request_id: str,
    prompt: int | list[int],
    *,
    lora: int = 0,
    priority: int = 0,
    arrival: float = 0.0,
) -> SequenceGroup:
    """Return a group of one sequence. Prompts given by their length share nothing."""
    number = int(request_id)
    tokens = (
        prompt if isinstance(prompt, list) else list(range(number * 1000, number * 1000 + prompt))
    )
    adapter = LoRARequest(str(lora), lora, "/adapter") if lora else None
    seq = Sequence(number, tokens, BLOCK_SIZE, lora_request=adapter)
    return SequenceGroup(request_id, [seq], arrival, lora_request=adapter, priority=priority)


def make_groups(scheduler: Scheduler, *prompts: int, **more: Any) -> list[SequenceGroup]:
    """Add groups with prompts of some lengths, numbered from 0."""
    groups = [make_group(str(number), length, **more) for number, length in enumerate(prompts)]
    for group in groups:
        scheduler.add_seq_group(group)
    return groups


def append(group: SequenceGroup, token: int = 7) -> None:
    for seq in group.seqs:
        if not seq.is_finished():
            seq.append_token_id(token)


def run(scheduler: Scheduler) -> tuple[list[SequenceGroupMetadata], SchedulerOutputs]:
    """Schedule and compute a step, without sampling."""
    metadata, outputs, _ = scheduler.schedule()
    for scheduled in outputs.scheduled_seq_groups:
        scheduled.seq_group.update_num_computed_tokens(scheduled.token_chunk_size)
    scheduler.check()
    return metadata, outputs


def step(scheduler: Scheduler) -> SchedulerOutputs:
    """Schedule, compute and sample a step."""
    metadata, outputs = run(scheduler)
    for scheduled, told in zip(outputs.scheduled_seq_groups, metadata, strict=True):
        if told.do_sample:
            append(scheduled.seq_group)
    return outputs


def start(scheduler: Scheduler, group: SequenceGroup) -> None:
    """Let a group be running, with its prompt computed and one token sampled."""
    scheduler._allocate_and_set_running(group)
    group.update_num_computed_tokens(group.first_seq.get_len())
    append(group)


def fork(scheduler: Scheduler, group: SequenceGroup, seq_id: int) -> Sequence:
    """Fork the first sequence of a running group; return the child."""
    child = group.first_seq.fork(seq_id)
    group.add(child)
    scheduler.fork_seq(group.first_seq, child)
    return child


def ids(groups: Any) -> list[str]:
    """Return request ids, of groups or of scheduled ones."""
    return [getattr(group, "seq_group", group).request_id for group in groups]


def chunks(outputs: SchedulerOutputs) -> dict[str, int]:
    """Return each scheduled group's tokens."""
    return {
        each.seq_group.request_id: each.token_chunk_size for each in outputs.scheduled_seq_groups
    }
