"""Our blocks and scheduler do what vLLM 0.9.2's did.

`record_v0_blocks.py` and `record_v0_scheduler.py` in tests/vllm of commit bcd2599f made the recordings;
0.9.2 is the last version of that engine.
"""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v0.block_stream import ManagerStream, stream
from tests.lab.simworker.v0.scheduler_stream import SchedulerStream

BLOCKS = Path(__file__).with_name("block_recording.jsonl.gz")
BLOCK_LINES = [json.loads(line) for line in gzip.decompress(BLOCKS.read_bytes()).splitlines()]


@pytest.mark.parametrize("number", range(len(BLOCK_LINES)))
def test_every_outcome_is_that_of_the_engine(number: int) -> None:
    config, operations = BLOCK_LINES[number]["config"], BLOCK_LINES[number]["operations"]
    subject: Any = stream(config)
    for at, (operation, recorded) in enumerate(operations):
        # 0.9.2's rates of hits are passed over: ours keeps none.
        if operation[0] == "hit_rate":
            continue
        expected = recorded
        if operation[0] == "end_step":
            expected = [recorded[0][0], *recorded[1:]]
        outcome = subject.apply(operation)
        assert json.loads(json.dumps(outcome)) == expected, f"operation {at}: {operation}"
        if isinstance(subject, ManagerStream):
            subject.manager.check()
        else:
            for allocator in subject.allocators:
                allocator.check()


def test_the_recording_of_blocks_has_every_outcome_worth_telling() -> None:
    came = Counter(
        (operation[0], bool(result[0]))
        for line in BLOCK_LINES
        for operation, result in line["operations"]
    )
    for kind in ("extend", "swap_out", "reset"):
        assert min(came[kind, True], came[kind, False]) > 50
    for kind in ("admit", "fork", "swap_in", "immutable", "mutable", "append", "move", "find"):
        assert came[kind, True] > 50
    results = [(op[0], result[0]) for line in BLOCK_LINES for op, result in line["operations"]]
    admitted = Counter(result[0] for kind, result in results if kind == "admit")
    assert min(admitted["OK"], admitted["LATER"], admitted["NEVER"]) > 20
    assert sum(any(result[1]) for kind, result in results if kind == "admit") > 50
    swapped = Counter(str(result) for kind, result in results if kind == "swap_in")
    assert min(swapped["LATER"], len(swapped) - 2) > 20
    copied = [result for kind, result in results if kind == "extend" and result and any(result[0])]
    assert len(copied) > 50


RECORDING = Path(__file__).with_name("scheduler_recording.jsonl.gz")
LINES = gzip.decompress(RECORDING.read_bytes()).decode().splitlines()


@pytest.mark.parametrize("number", range(len(LINES)))
def test_each_step_of_the_recorded_engine_is_ours(number: int) -> None:
    line = json.loads(LINES[number])
    stream = SchedulerStream(line["config"])
    for position, (*operation, expected) in enumerate(line["operations"]):
        if expected is not None and "error" in expected:
            with pytest.raises(RuntimeError, match="no room to swap out"):
                stream.apply(operation)
            return
        assert stream.apply(operation) == expected, (position, operation, line["config"])
        stream.scheduler.check()


def test_the_recording_holds_what_it_is_for() -> None:
    """Enough of each outcome that a replay without differences means something."""
    lines = [json.loads(line) for line in LINES]
    steps = [op[-1] for line in lines for op in line["operations"] if op[0] == "step"]
    for outcome, least in {
        "groups": 2000, "in": 30, "out": 30, "copy": 30, "preempted": 200, "ignored": 30, "swapped": 100,
    }.items():  # fmt: skip
        assert sum(bool(step.get(outcome)) for step in steps) >= least, outcome
    assert sum(any(step.get("computed", ())) for step in steps) >= 500
    assert any("error" in step for step in steps)
    for field, values in {
        "policy": {"fcfs", "priority"},
        "enable_chunked_prefill": {True, False},
        "enable_prefix_caching": {True, False},
        "preemption_mode": {None, "swap", "recompute"},
    }.items():
        assert {line["config"][field] for line in lines} == values
