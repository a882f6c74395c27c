"""Makes block managers, and groups of sequences on them."""

from typing import Any

from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.device import AllocStatus
from warmpath.lab.simworker.v0.requests.sequence import (
    Logprob,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)

SIZE = 4
RUNNING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.SWAPPED


def manager_of(
    gpu: int = 10, cpu: int = 10, watermark: float = 0.0, **options: Any
) -> BlockManager:
    return BlockManager(SIZE, gpu, cpu, watermark, **options)


def group_of(number: int, tokens: list[int], count: int = 1, **options: Any) -> SequenceGroup:
    inputs = {"prompt_token_ids": tokens}
    seqs = [Sequence(number * 10 + at, inputs, SIZE) for at in range(count)]
    return SequenceGroup(f"r{number}", seqs, 0.0, **options)


def set_status(group: SequenceGroup, status: SequenceStatus) -> None:
    for seq in group.seqs:
        seq.status = status


def admitted(
    manager: BlockManager, number: int, tokens: list[int], count: int = 1
) -> SequenceGroup:
    group = group_of(number, tokens, count)
    assert manager.can_allocate(group) is AllocStatus.OK
    manager.allocate(group)
    set_status(group, RUNNING)
    for seq in group.seqs:
        seq.data.update_num_computed_tokens(len(tokens))
    manager.mark_blocks_as_computed(group, len(tokens))
    return group


def sample(seq: Sequence, *tokens: int) -> None:
    for token in tokens:
        seq.append_token_id(token, {token: Logprob(0.0)})
