"""vLLM's own scheduler and OffloadingConnector, recorded (`tests/vllm/record_offload.py`), and ours."""

import json
import os
import zlib
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v1.recorded_scenarios import recorded_scenarios
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    MEDIUM_CPU,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.offload.job import OffloadingMetadata, TransferJob
from warmpath.lab.simworker.v1.offload.pool import CPUOffloadingManager
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

RECORDING = Path(
    os.environ.get("WARMPATH_OFFLOAD_RECORDING")
    or Path(__file__).parents[1] / "vllm_offload.jsonl.gz"
)


SCENARIOS = recorded_scenarios(RECORDING)


class Replay:
    """Our scheduler and connector, given what vLLM's were given."""

    def __init__(self, args: dict[str, Any]) -> None:
        shape = {"block_size": args["block_size"], "num_kv_heads": 1, "head_size": 1}
        specs: list[KVCacheSpec] = [FullAttentionSpec(**shape, dtype="float32")]
        if args["sliding_window"]:
            specs.append(
                SlidingWindowSpec(**shape, dtype="float32", sliding_window=args["sliding_window"])
            )
        groups = [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]
        self.manager = KVCacheManager(
            KVCacheConfig(args["num_blocks"], [], groups, args["retention_interval"]),
            args["max_model_len"],
            max_in_flight_tokens=args["max_num_batched_tokens"],
            enable_kv_cache_events=True,
        )
        self.connector = OffloadingConnector(
            groups,
            CPUOffloadingManager(args["num_chunks"]),
            hash_block_size=args["block_size"],
            blocks_per_chunk=args["blocks_per_chunk"],
            offload_prompt_only=args["offload_prompt_only"],
            retention_interval=args["retention_interval"],
            self_describing_kv_events=args["self_describing"],
        )
        names = SchedulerConfig.__dataclass_fields__.keys() & args.keys()
        self.scheduler = Scheduler(
            self.manager,
            SchedulerConfig(**{name: args[name] for name in names}),
            connector=self.connector,
        )
        self.hasher = get_request_block_hasher(args["block_size"], sha256_cbor)
        self.output = SchedulerOutput()
        self.seen: set[str] = set()
        self.windows = args["sliding_window"] > 0

    def do(self, op: str, args: Any) -> Any:
        return getattr(self, op)(*args) if isinstance(args, list) else getattr(self, op)(**args)

    def add_request(self, prompt: list[int], max_tokens: int, **args: Any) -> None:
        prefix, length, first, more = prompt
        tokens = [100 * prefix + 3 * index for index in range(length)]
        tokens += [(first + 7 * index) % 1000 for index in range(more)]
        assert args.pop("lora_name") is None
        skip = args.pop("skip_reading_prefix_cache")
        self.scheduler.add_request(
            Request(
                args.pop("request_id"),
                tokens,
                SamplingParams(max_tokens=max_tokens, skip_reading_prefix_cache=skip),
                None,
                block_hasher=self.hasher,
                **args,
            )
        )

    def schedule(self) -> dict[str, Any]:
        self.output = output = self.scheduler.schedule()
        new = output.req_to_new_blocks
        empty = self.manager.empty_kv_cache_blocks
        meta = output.kv_connector_metadata
        assert isinstance(meta, OffloadingMetadata)
        ids = [
            new.get(name, empty).get_block_ids(allow_none=True)
            for name in output.num_scheduled_tokens
        ]
        return {
            "scheduled": [list(item) for item in output.num_scheduled_tokens.items()],
            "new_block_ids": [list(one or ()) for one in ids],
            "preempted": sorted(output.preempted_req_ids),
            "finished": sorted(output.finished_req_ids),
            "loads": {str(number): self.copies(job) for number, job in meta.load_jobs.items()},
            "stores": {str(number): self.copies(job) for number, job in meta.store_jobs.items()},
            "flush": sorted(meta.jobs_to_flush),
        }

    def update_from_output(self, ended: list[int]) -> dict[str, Any]:
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
        self.scheduler.update_connector_output(ended)
        events = self.scheduler.take_events()
        of_host = [event for event in events if getattr(event, "medium", "GPU") == MEDIUM_CPU]
        return {
            "outputs": outputs,
            "gpu_events": len(events) - len(of_host),
            "cpu_events": summary([written(event) for event in of_host]),
        }

    def copies(self, job: TransferJob) -> list[Any]:
        chunks = dict.fromkeys(copy.chunk_id for copy in job.copies)
        parts = None if self.windows else [copy.part for copy in job.copies]
        return [job.req_id, [copy.gpu_block_id for copy in job.copies], list(chunks), parts]

    def finish_requests(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id)

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        return self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def reset_connector(self) -> None:
        self.connector.reset_cache()

    def set_pause_state(self, state: str) -> int:
        self.scheduler.set_pause_state(PauseState[state])
        return self.scheduler.get_num_unfinished_requests()

    def state(self) -> dict[str, Any]:
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "waiting": [request.request_id for request in self.scheduler.waiting],
            "free": self.manager.block_pool.get_num_free_blocks(),
        }


def summary(events: list[list[Any]]) -> list[int]:
    """Return how many chunks were stored, how many hashes removed, and a CRC-32 of the events as JSON.

    What was stored between removals is sorted: vLLM takes a job's chunks from a set, in any order.
    """
    runs = groupby(events, key=itemgetter(0))
    told = [
        event
        for kind, run in runs
        for event in (sorted(run, key=repr) if kind == "stored" else run)
    ]
    removed = sum(len(event[1]) for event in told if event[0] == "removed")
    stored = sum(event[0] == "stored" for event in told)
    return [stored, removed, zlib.crc32(json.dumps(told).encode())]


def written(event: CacheEvent) -> list[Any]:
    if isinstance(event, BlockRemoved):
        return ["removed", event.block_hashes, event.group_idx, event.medium]
    assert isinstance(event, BlockStored)
    return [
        "stored", event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size,
        event.lora_id, event.lora_name, event.extra_keys, event.group_idx, event.medium,
        event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window,
    ]  # fmt: skip


def differences(lines: list[dict[str, Any]]) -> Iterator[str]:
    replay = Replay(lines[0]["args"])
    for number, line in enumerate(lines[1:], 1):
        out = replay.do(line["op"], line["args"])
        replay.scheduler.check()
        replay.connector.check()
        ours = (out if isinstance(out, dict) else {"out": out}) | replay.state()
        theirs = line["out"] if isinstance(line["out"], dict) else {"out": line["out"]}
        for name, value in ours.items():
            told = theirs[name] if name in theirs else line[name]
            if value != told:
                yield f"line {number}, {line['op']}: {name} is {value}, recorded {told}"


@pytest.mark.deep
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_copy_and_event_is_what_vllm_decided(name: str) -> None:
    assert list(differences(SCENARIOS[name])) == []


def test_the_recording_has_what_it_is_for() -> None:
    lines = [line for lines in SCENARIOS.values() for line in lines]
    steps = [line["out"] for line in lines if line["op"] == "schedule"]
    events = [line["out"]["cpu_events"] for line in lines if line["op"] == "update_from_output"]
    assert sum(len(step["loads"]) for step in steps) > 100
    assert sum(len(step["stores"]) for step in steps) > 500
    assert sum(len(step["flush"]) for step in steps) > 50
    assert sum(event[0] for event in events) > 2000
    assert sum(event[1] for event in events) > 500
    assert {"finish_requests", "reset_connector"} <= {line["op"] for line in lines}
