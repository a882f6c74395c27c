"""Our block manager and allocators do what vLLM 0.9.2's did: `tests/vllm/record_v0_blocks.py` recorded it."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v0.block_stream import Api, ManagerStream, stream
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import (
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
)
from warmpath.lab.simworker.v0.device import Device
from warmpath.lab.simworker.v0.requests.lora import LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import (
    Logprob,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)

RECORDING = Path(__file__).parents[1] / "block_recording.jsonl.gz"
LINES = [json.loads(line) for line in gzip.decompress(RECORDING.read_bytes()).splitlines()]
API = Api(
    BlockManager,
    NaiveBlockAllocator,
    PrefixCachingBlockAllocator,
    PrefixCachingBlock.hash_block_tokens,
    NoFreeBlocksError,
    Device,
    Sequence,
    SequenceGroup,
    SequenceStatus,
    Logprob,
    LoRARequest,
    SequenceGroup.add,
)


@pytest.mark.parametrize("number", range(len(LINES)))
def test_every_outcome_is_that_of_the_engine(number: int) -> None:
    config, operations = LINES[number]["config"], LINES[number]["operations"]
    subject: Any = stream(API, config)
    for at, (operation, expected) in enumerate(operations):
        outcome = subject.apply(operation)
        assert json.loads(json.dumps(outcome)) == expected, f"operation {at}: {operation}"
        if isinstance(subject, ManagerStream):
            subject.manager.check()
        else:
            for allocator in subject.allocators:
                allocator.check()


def test_the_recording_has_every_outcome_worth_telling() -> None:
    came = Counter(
        (operation[0], bool(result[0]))
        for line in LINES
        for operation, result in line["operations"]
    )
    for kind in ("extend", "swap_out", "reset"):
        assert min(came[kind, True], came[kind, False]) > 50
    for kind in ("admit", "fork", "swap_in", "immutable", "mutable", "append", "move", "find"):
        assert came[kind, True] > 50
    results = [(op[0], result[0]) for line in LINES for op, result in line["operations"]]
    admitted = Counter(result[0] for kind, result in results if kind == "admit")
    assert min(admitted["OK"], admitted["LATER"], admitted["NEVER"]) > 20
    assert sum(any(result[1]) for kind, result in results if kind == "admit") > 50
    swapped = Counter(str(result) for kind, result in results if kind == "swap_in")
    assert min(swapped["LATER"], len(swapped) - 2) > 20
    copied = [result for kind, result in results if kind == "extend" and result and any(result[0])]
    assert len(copied) > 50
