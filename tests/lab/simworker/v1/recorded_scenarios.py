"""Recordings of vLLM's scheduler: their lines by scenario, each beginning with `new_scheduler`, and ours."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.requests.sampling_params import SamplingParams
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState, SchedulerConfig
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)

LORAS = {"one": 1, "two": 2, "three": 3}

Line = dict[str, Any]


def recorded_scenarios(recording: Path) -> dict[str, list[Line]]:
    scenarios: dict[str, list[Line]] = {}
    lines: list[Line] = []
    with gzip.open(recording, "rt") as file:
        for line in map(json.loads, file):
            if line["op"] == "new_scheduler":
                lines = scenarios.setdefault(line["args"]["name"], [])
            lines.append(line)
    return scenarios


def groups_of(args: Line) -> list[KVCacheGroupSpec]:
    shape = {
        "block_size": args["block_size"],
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": "float32",
    }
    specs: list[KVCacheSpec] = [FullAttentionSpec(**shape)]
    if args["sliding_window"]:
        specs.append(SlidingWindowSpec(**shape, sliding_window=args["sliding_window"]))
    return [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]


class Replay:
    """Our scheduler, given what vLLM's was given."""

    def __init__(
        self, args: Line, manager: KVCacheManager, connector: OffloadingConnector | None = None
    ) -> None:
        self.manager = manager
        names = SchedulerConfig.__dataclass_fields__.keys() & args.keys()
        self.scheduler = Scheduler(
            manager, SchedulerConfig(**{name: args[name] for name in names}), connector=connector
        )
        self.hasher = get_request_block_hasher(args["block_size"], sha256_cbor)
        self.output = SchedulerOutput()
        self.seen: set[str] = set()

    def differences(self, lines: list[Line]) -> Iterator[str]:
        """Do what the lines say; yield where something came out otherwise."""
        for number, line in enumerate(lines, 1):
            do, args = getattr(self, line["op"]), line["args"]
            out = do(*args) if isinstance(args, list) else do(**args)
            self.check()
            for name, value in ({"out": out} | self.state()).items():
                if value != line[name]:
                    yield f"line {number}, {line['op']}: {name} is {value}, recorded {line[name]}"

    def check(self) -> None:
        self.scheduler.check()

    def add_request(self, prompt: list[int], max_tokens: int, **args: Any) -> None:
        prefix, length, first, more = prompt
        tokens = [100 * prefix + 3 * index for index in range(length)]
        tokens += [(first + 7 * index) % 1000 for index in range(more)]
        name = args.pop("lora_name")
        skip = args.pop("skip_reading_prefix_cache")
        self.scheduler.add_request(
            Request(
                args.pop("request_id"),
                tokens,
                SamplingParams(max_tokens=max_tokens, skip_reading_prefix_cache=skip),
                None,
                lora_request=name and LoRARequest(name, LORAS[name], f"adapters/{name}"),
                block_hasher=self.hasher,
                **args,
            )
        )

    def schedule(self) -> Line:
        self.output = output = self.scheduler.schedule()
        new = output.req_to_new_blocks
        empty = self.manager.empty_kv_cache_blocks
        ids = [
            new.get(name, empty).get_block_ids(allow_none=True)
            for name in output.num_scheduled_tokens
        ]
        return {
            "scheduled": [list(item) for item in output.num_scheduled_tokens.items()],
            "new_block_ids": [list(one or ()) for one in ids],
            "preempted": sorted(output.preempted_req_ids),
            "finished": sorted(output.finished_req_ids),
        }

    def outputs(self) -> list[list[Any]]:
        """Sample and update; return each request's tokens, how many it found cached, and why it ended."""
        requests = self.scheduler.requests
        sampled = {
            name: [(31 * int(name) + 7 * requests[name].num_tokens) % 1000]
            for name in self.output.num_scheduled_tokens
            if name in requests and requests[name].num_computed_tokens >= requests[name].num_tokens
        }
        outputs = []
        for one in self.scheduler.update_from_output(self.output, sampled):
            name = one.request.request_id
            cached = None if name in self.seen else one.request.num_cached_tokens
            self.seen.add(name)
            outputs.append([name, one.new_token_ids, cached, "length" if one.finished else None])
        return outputs

    def finish_requests(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id)

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        return self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def set_pause_state(self, state: str) -> int:
        self.scheduler.set_pause_state(PauseState[state])
        return self.scheduler.get_num_unfinished_requests()

    def state(self) -> Line:
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "waiting": [request.request_id for request in self.scheduler.waiting],
            "free": self.manager.block_pool.get_num_free_blocks(),
        }
