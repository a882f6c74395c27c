"""Records vLLM 0.9.2's own scheduler under random streams of requests.

    python tests/vllm/record_v0_scheduler.py FOLDER tests/lab/simworker/v0/scheduler_recording.jsonl.gz

FOLDER holds the unpacked wheel of vLLM 0.9.2 (the folder with `vllm` in it). Its `vllm.core` and
`vllm.sequence` are run as they are, with stubs for the other modules that they import, so only torch and
msgspec must be installed. A line of the recording is a stream: its settings, and operations, each step
with its result. A stream ends early if the engine raises: with `error` if it refuses to swap out without
room, without `error` if 0.9.2 fails (counted on stderr).
"""

import collections
import dataclasses
import enum
import gzip
import json
import logging
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab" / "simworker" / "v0"))

from scheduler_stream import Api, SchedulerStream

STREAMS = 110
STEPS = 40


class Anything(ModuleType):
    """A module in which every name is a class without members."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Device(enum.Enum):
    """As in `vllm.utils`."""

    GPU = enum.auto()
    CPU = enum.auto()


class PyObjectCache:
    """Like the original, but makes a new object each time and keeps none."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.get_object = build

    def reset(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """As in `vllm.lora.request`."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    long_lora_max_len: None = None


def stand_in(folder: Path) -> None:
    """Let `import vllm.core.scheduler` find the real module, and stubs for the modules outside it."""
    for name in (
        "vllm.config", "vllm.inputs", "vllm.logger", "vllm.lora", "vllm.lora.request",
        "vllm.multimodal", "vllm.platforms", "vllm.pooling_params", "vllm.prompt_adapter",
        "vllm.prompt_adapter.request", "vllm.sampling_params", "vllm.utils",
    ):  # fmt: skip
        sys.modules[name] = Anything(name)
    package = ModuleType("vllm")
    package.__path__ = [str(folder / "vllm")]
    sys.modules["vllm"] = package
    logging.disable(logging.CRITICAL)
    sys.modules["vllm.logger"].init_logger = logging.getLogger
    sys.modules["vllm.lora.request"].LoRARequest = LoRARequest
    sys.modules["vllm.platforms"].current_platform = SimpleNamespace(is_hpu=lambda: False)
    sys.modules["vllm.multimodal"].MultiModalKwargs = dict
    utils = sys.modules["vllm.utils"]
    utils.Device = Device
    utils.PyObjectCache = PyObjectCache
    utils.cdiv = lambda a, b: -(a // -b)
    utils.chunk_list = lambda items, size: (
        items[start : start + size] for start in range(0, len(items), size)
    )


def join(group: Any, seq: Any) -> None:
    group.seqs.append(seq)
    group.seqs_dict[seq.seq_id] = seq
    group.is_single_seq = False


def make_api() -> Api:
    """Return 0.9.2's classes. Its scheduler reads the clock through its module's `time`."""
    from vllm import sequence
    from vllm.core import scheduler

    def build(config: dict[str, Any], clock: Callable[[], float]) -> Any:
        scheduler.time = SimpleNamespace(time=clock, perf_counter=lambda: 0.0)
        chunked = config["enable_chunked_prefill"]
        steps = config["num_scheduler_steps"]
        limits = SimpleNamespace(
            runner_type="generate", send_delta_data=False, chunked_prefill_enabled=chunked,
            is_multi_step=steps > 1, **config,
        )  # fmt: skip
        cache = SimpleNamespace(is_attention_free=False, **config)
        lora = SimpleNamespace(max_loras=config["max_loras"]) if config["max_loras"] else None
        return scheduler.Scheduler(limits, cache, lora)

    return Api(
        build, sequence.Sequence, sequence.SequenceGroup, sequence.SequenceStatus,
        sequence.Logprob, LoRARequest, join,
    )  # fmt: skip


def make_config(draw: random.Random) -> dict[str, Any]:
    """Return settings of a stream; pools are small, so that groups are preempted."""
    chunked = draw.random() < 0.5
    policy = "priority" if not chunked and draw.random() < 0.3 else "fcfs"
    block_size = draw.choice([2, 4, 4, 8])
    max_num_seqs = draw.randint(2, 8)
    max_model_len = draw.randint(3, 12) * block_size
    tokens = draw.randint(max_num_seqs, 40) if chunked else draw.randint(1, 3) * max_model_len
    lookahead = draw.choice([0, 0, 0, 2, 4])
    modes = (
        [None, None, "recompute"] if policy == "priority" else [None, "recompute", "swap", "swap"]
    )
    prefills = draw.randint(1, 3) if chunked else 1
    caching = draw.random() < 0.5
    return {
        "block_size": block_size,
        "num_gpu_blocks": draw.randint(12, 25) if draw.random() < 0.9 else draw.randint(100, 130),
        "num_cpu_blocks": draw.choice([4, 30, 60, 60]),
        "enable_prefix_caching": caching,
        "sliding_window": 2 * block_size if not caching and draw.random() < 0.15 else None,
        "max_num_batched_tokens": max(tokens, max_num_seqs),
        "max_num_seqs": max_num_seqs,
        "max_model_len": max_model_len,
        "max_num_partial_prefills": prefills,
        "max_long_partial_prefills": draw.randint(1, prefills),
        "long_prefill_token_threshold": draw.randint(1, max_model_len) if prefills > 1 else 0,
        "num_lookahead_slots": lookahead,
        "num_scheduler_steps": lookahead + 1 if lookahead and draw.random() < 0.4 else 1,
        "delay_factor": draw.choice([0, 0, 0, 0.5]),
        "enable_chunked_prefill": chunked,
        "preemption_mode": draw.choice(modes),
        "policy": policy,
        "max_loras": draw.choice([0, 0, 1, 2]),
    }


class Requests:
    """Draws the operations of one stream."""

    def __init__(self, draw: random.Random, stream: SchedulerStream) -> None:
        self.draw = draw
        self.stream = stream
        self.now = 0.0
        self.ids = 0
        config = stream.config
        # 0.9.2 supports several sequences only without chunks, with a way to preempt them, and without
        # a sliding window, whose freed blocks its forks go on using.
        self.forks = (
            not config["enable_chunked_prefill"]
            and config["policy"] == "fcfs"
            and config["preemption_mode"] != "recompute"
            and config["sliding_window"] is None
            and draw.random() < 0.8
        )

    def next_operations(self) -> list[list[Any]]:
        """Return some arrivals, forks and aborts, and a step."""
        draw = self.draw
        operations = [self._add() for _ in range(draw.choice([0, 0, 1, 1, 2]))]
        scheduler = self.stream.scheduler
        if scheduler.running and self.forks and draw.random() < 0.5:
            operations += self._fork(draw.choice(list(scheduler.running)))
        if self.forks and self.stream.config["preemption_mode"] == "swap":
            operations += self._stop()
        if draw.random() < 0.05 and scheduler.get_num_unfinished_seq_groups():
            queued = [*scheduler.waiting, *scheduler.running, *scheduler.swapped]
            operations.append(["abort", draw.choice(queued).request_id])
        self.now = round(self.now + draw.choice([0.25, 0.5, 1.0]), 2)
        generated = {}
        if self.stream.config["num_lookahead_slots"]:
            room = self.stream.config["num_lookahead_slots"] + 1
            for group in scheduler.running:
                for seq in group.seqs:
                    left = self.stream.config["max_model_len"] - seq.get_len()
                    if not seq.is_prefill() and left > 1:
                        generated[str(seq.seq_id)] = draw.randint(1, min(room, left))
        operations.append(["step", self.now, generated])
        return operations

    def _add(self) -> list[Any]:
        draw, config = self.draw, self.stream.config
        self.ids += 1
        longest = config["max_model_len"] - 1
        length = draw.randint(1, longest) if draw.random() < 0.97 else longest + 5
        shared = min(length, draw.choice([0, 0, length, draw.randint(0, length)]))
        runs = [[0, shared], [self.ids * 1000, length - shared]]
        adapter = draw.choice([0, 1, 2, 3]) if config["max_loras"] else 0
        priority = draw.randint(0, 3) if config["policy"] == "priority" else 0
        return ["add", str(self.ids * 10), [run for run in runs if run[1]], priority, adapter]

    def _fork(self, group: Any) -> list[list[Any]]:
        limit = self.stream.config["max_num_seqs"]
        running = sum(each.get_max_num_running_seqs() for each in self.stream.scheduler.running)
        open_seqs = [seq for seq in group.seqs if not seq.is_finished()]
        if running >= limit or len(group.seqs) >= 4 or not open_seqs or group.is_prefill():
            return []
        parent = self.draw.choice(open_seqs)
        child = int(group.request_id) + len(group.seqs)
        return [["fork", group.request_id, parent.seq_id, child]]

    def _stop(self) -> list[list[Any]]:
        several = [group for group in self.stream.scheduler.running if len(group.seqs) > 1]
        if not several or self.draw.random() > 0.2:
            return []
        open_seqs = [seq for seq in self.draw.choice(several).seqs if not seq.is_finished()]
        return [["stop", self.draw.choice(open_seqs).seq_id]] if len(open_seqs) > 1 else []


def record(api: Api, seed: int, failures: collections.Counter[str]) -> dict[str, Any]:
    """Return one stream with the results of its steps."""
    draw = random.Random(seed)
    stream = SchedulerStream(api, make_config(draw))
    requests = Requests(draw, stream)
    operations: list[list[Any]] = []
    line: dict[str, Any] = {"config": stream.config, "operations": operations}
    for _ in range(STEPS):
        for operation in requests.next_operations():
            try:
                operations.append([*operation, stream.apply(operation)])
            except Exception as error:  # noqa: BLE001 - whatever the engine fails with
                if "swap space" in str(error):
                    operations.append([*operation, {"error": "no room to swap out"}])
                    return line
                failures[told(error)] += 1
                return line
    return line


def told(error: Exception) -> str:
    """Return an error's name and place."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name}, line {last.lineno}"


def write(lines: list[dict[str, Any]], target: str) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    Path(target).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(folder: str, target: str) -> None:
    """Record, and print the failures of 0.9.2 on stderr."""
    stand_in(Path(folder))
    api = make_api()
    failures: collections.Counter[str] = collections.Counter()
    lines = [record(api, seed, failures) for seed in range(STREAMS)]
    write(lines, target)
    results = [each[-1] for line in lines for each in line["operations"] if each[0] == "step"]
    figures = {
        "steps": len(results),
        "errors": sum("error" in result for result in results),
        **{
            name: sum(bool(result.get(name)) for result in results)
            for name in ("groups", "in", "out", "copy", "ignored", "preempted", "swapped")
        },
        "cached": sum(any(result.get("computed", [])) for result in results),
        "bytes": Path(target).stat().st_size,
        "failures of 0.9.2": dict(failures),
    }
    sys.stderr.write(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
