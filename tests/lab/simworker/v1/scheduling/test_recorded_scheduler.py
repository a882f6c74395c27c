"""vLLM's own scheduler, recorded step by step (`tests/vllm/record_scheduler.py`), and ours."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v1.recorded_scenarios import recorded_scenarios
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.requests.sampling_params import SamplingParams
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState, SchedulerConfig
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)

RECORDING = Path(__file__).parents[1] / "vllm_scheduler.jsonl.gz"
LORAS = {"one": 1, "two": 2, "three": 3}


SCENARIOS = recorded_scenarios(RECORDING)


class Replay:
    """Our scheduler, given what vLLM's was given."""

    def __init__(self, args: dict[str, Any]) -> None:
        shape = {
            "block_size": args["block_size"],
            "num_kv_heads": 1,
            "head_size": 1,
            "dtype": "float32",
        }
        specs: list[KVCacheSpec] = [FullAttentionSpec(**shape)]
        if args["sliding_window"]:
            specs.append(SlidingWindowSpec(**shape, sliding_window=args["sliding_window"]))
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=args["num_blocks"],
                kv_cache_tensors=[],
                kv_cache_groups=[
                    KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)
                ],
            ),
            args["max_model_len"],
            max_in_flight_tokens=args["max_num_batched_tokens"],
            enable_caching=args["enable_caching"],
            log_stats=True,
            enable_kv_cache_events=True,
            watermark=args["watermark"],
        )
        names = SchedulerConfig.__dataclass_fields__.keys() & args.keys()
        self.scheduler = Scheduler(
            self.manager, SchedulerConfig(**{name: args[name] for name in names})
        )
        self.hasher = get_request_block_hasher(args["block_size"], sha256_cbor)
        self.output = SchedulerOutput()

    def do(self, op: str, args: Any) -> Any:
        return getattr(self, op)(*args) if isinstance(args, list) else getattr(self, op)(**args)

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

    def schedule(self) -> dict[str, Any]:
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

    def update_from_output(self) -> dict[str, Any]:
        requests = self.scheduler.requests
        sampled = {
            name: [(31 * int(name) + 7 * requests[name].num_tokens) % 1000]
            for name in self.output.num_scheduled_tokens
            if name in requests and requests[name].num_computed_tokens >= requests[name].num_tokens
        }
        seen: set[str] = self.__dict__.setdefault("seen", set())
        outputs = []
        for one in self.scheduler.update_from_output(self.output, sampled):
            name = one.request.request_id
            first = name not in seen
            seen.add(name)
            reason = "length" if one.finished else None
            outputs.append(
                [name, one.new_token_ids, one.request.num_cached_tokens if first else None, reason]
            )
        events = [written(event) for event in self.scheduler.take_events()]
        running, waiting = self.scheduler.get_request_counts()
        skipped = len(self.scheduler.deferred_waiting)
        cache = self.manager.make_prefix_cache_stats()
        assert cache is not None
        assert running == len(self.scheduler.running)
        return {
            "outputs": outputs,
            "events": [len(events), zlib.crc32(json.dumps(events).encode())],
            "waiting": waiting - skipped,
            "skipped": skipped,
            "usage": self.manager.usage,
            "prefix_cache": [
                cache.requests, cache.queries, cache.hits,
                cache.preempted_requests, cache.preempted_queries, cache.preempted_hits,
            ],
        }  # fmt: skip

    def finish_requests(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id)

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        return self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def set_pause_state(self, state: str) -> int:
        self.scheduler.set_pause_state(PauseState[state])
        return self.scheduler.get_num_unfinished_requests()

    def state(self) -> dict[str, Any]:
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "waiting": [request.request_id for request in self.scheduler.waiting],
            "free": self.manager.block_pool.get_num_free_blocks(),
        }


def written(event: CacheEvent) -> list[Any]:
    match event:
        case BlockStored():
            return ["stored", event.block_hashes, event.parent_block_hash, event.token_ids,
                    event.lora_name, event.group_idx]  # fmt: skip
        case BlockRemoved():
            return ["removed", event.block_hashes, event.group_idx]
        case AllBlocksCleared():
            return ["cleared"]


def differences(lines: list[dict[str, Any]]) -> Iterator[str]:
    replay = Replay(lines[0]["args"])
    for number, line in enumerate(lines[1:], 1):
        out = replay.do(line["op"], line["args"])
        replay.scheduler.check()
        state = replay.state()
        theirs = {"out": line["out"]} | {name: line[name] for name in state}
        for name, value in ({"out": out} | state).items():
            if value != theirs[name]:
                yield f"line {number}, {line['op']}: {name} is {value}, recorded {theirs[name]}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_what_vllm_decided(name: str) -> None:
    assert list(differences(SCENARIOS[name])) == []


def test_the_recording_has_what_it_is_for() -> None:
    lines = [line for lines in SCENARIOS.values() for line in lines]
    steps = [line["out"] for line in lines if line["op"] == "schedule"]
    ends = [line["out"] for line in lines if line["op"] == "update_from_output"]
    assert len(steps) > 1900
    assert sum(len(step["preempted"]) for step in steps) > 100
    assert sum(end["events"][0] for end in ends) > 1000
    assert sum(end["prefix_cache"][2] for end in ends) > 1000
    assert sum(end["skipped"] > 0 for end in ends) > 10
    assert {line["op"] for line in lines} >= {
        "finish_requests",
        "reset_prefix_cache",
        "set_pause_state",
    }
