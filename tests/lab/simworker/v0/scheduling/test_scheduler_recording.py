"""Our scheduler does what vLLM 0.9.2's did: `tests/vllm/record_v0_scheduler.py` made the recording."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v0.scheduler_stream import Api, SchedulerStream
from warmpath.lab.simworker.v0.requests.lora import LoRAConfig, LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import (
    Logprob,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig

RECORDING = Path(__file__).parents[1] / "scheduler_recording.jsonl.gz"
LINES = gzip.decompress(RECORDING.read_bytes()).decode().splitlines()
CACHE_FIELDS = (
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "enable_prefix_caching",
    "sliding_window",
)


def build(config: dict[str, Any], clock: Callable[[], float]) -> Scheduler:
    limits = {name: value for name, value in config.items() if name not in CACHE_FIELDS}
    max_loras = limits.pop("max_loras")
    return Scheduler(
        SchedulerConfig(**limits),
        CacheConfig(**{name: config[name] for name in CACHE_FIELDS}),
        LoRAConfig(max_loras=max_loras) if max_loras else None,
        clock=clock,
    )


API = Api(
    build, Sequence, SequenceGroup, SequenceStatus, Logprob, LoRARequest,
    lambda group, seq: group.add(seq),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(LINES)))
def test_each_step_of_the_recorded_engine_is_ours(number: int) -> None:
    line = json.loads(LINES[number])
    stream = SchedulerStream(API, line["config"])
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
