"""vLLM's own scheduler, with and without its OffloadingConnector, recorded step by step, and ours.

`tests/vllm/record_scheduler.py` and `record_offload.py` of commit 7b94846c recorded them.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v1.small_cache import full, window
from tests.lab.simworker.v1.written import checksum, prompt_of, summary, written, written_of_host
from warmpath.lab.simworker.v1.cache.kv_cache_event import MEDIUM_CPU
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.offload.pool import CPUOffloadingManager
from warmpath.lab.simworker.v1.offload.transfer import OffloadingMetadata, TransferJob
from warmpath.lab.simworker.v1.requests.request import Request, SamplingParams
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState, SchedulerConfig
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
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
    specs: list[KVCacheSpec] = [full(args["block_size"])]
    if args["sliding_window"]:
        specs.append(window(args["sliding_window"], args["block_size"]))
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
        name = args.pop("lora_name")
        skip = args.pop("skip_reading_prefix_cache")
        self.scheduler.add_request(
            Request(
                args.pop("request_id"),
                prompt_of(prompt),
                SamplingParams(max_tokens=max_tokens, skip_reading_prefix_cache=skip),
                lora_request=name and LoRARequest(name, LORAS[name], f"adapters/{name}"),
                block_hasher=self.hasher,
                **args,
            )
        )

    def schedule(self) -> Line:
        self.output = output = self.scheduler.schedule()
        new = output.req_to_new_blocks
        empty = self.manager.empty_kv_cache_blocks
        ids = [new.get(name, empty).get_block_ids() for name in output.num_scheduled_tokens]
        return {
            "scheduled": [list(item) for item in output.num_scheduled_tokens.items()],
            "new_block_ids": [list(one) if any(one) else [] for one in ids],
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
        self.scheduler.pause_state = PauseState[state]
        return self.scheduler.get_num_unfinished_requests()

    def state(self) -> Line:
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "waiting": [request.request_id for request in self.scheduler.waiting],
            "free": self.manager.block_pool.get_num_free_blocks(),
        }


UNSIMULATED = (
    "long_prefill_token_threshold", "max_num_scheduled_tokens", "max_num_active_seqs", "max_loras",
)  # fmt: skip
"""Settings of vLLM's scheduler that no worker has."""
SCENARIOS = {
    name: lines
    for name, lines in recorded_scenarios(
        Path(__file__).with_name("vllm_scheduler.jsonl.gz")
    ).items()
    if lines[0]["args"]["scheduler_reserve_full_isl"]
    and not any(lines[0]["args"][setting] for setting in UNSIMULATED)
}


class SchedulerReplay(Replay):
    def __init__(self, args: dict[str, Any]) -> None:
        manager = KVCacheManager(
            KVCacheConfig(args["num_blocks"], [], groups_of(args)),
            args["max_model_len"],
            max_in_flight_tokens=args["max_num_batched_tokens"],
            enable_caching=args["enable_caching"],
            enable_kv_cache_events=True,
            watermark=args["watermark"],
        )
        super().__init__(args, manager)

    def update_from_output(self) -> dict[str, Any]:
        outputs = self.outputs()
        events = [written(event) for event in self.scheduler.take_events()]
        running, waiting = self.scheduler.get_request_counts()
        skipped = len(self.scheduler.deferred_waiting)
        cache = self.manager.make_prefix_cache_stats()
        assert running == len(self.scheduler.running)
        return {
            "outputs": outputs,
            "events": [len(events), checksum(events)],
            "waiting": waiting - skipped,
            "skipped": skipped,
            "usage": self.manager.usage,
            "prefix_cache": [
                cache.requests, cache.queries, cache.hits,
                cache.preempted_requests, cache.preempted_queries, cache.preempted_hits,
            ],
        }  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_what_vllm_decided(name: str) -> None:
    first, *lines = SCENARIOS[name]
    assert list(SchedulerReplay(first["args"]).differences(lines)) == []


def test_the_recording_has_what_it_is_for() -> None:
    lines = [line for lines in SCENARIOS.values() for line in lines]
    steps = [line["out"] for line in lines if line["op"] == "schedule"]
    ends = [line["out"] for line in lines if line["op"] == "update_from_output"]
    assert len(steps) > 1700
    assert sum(len(step["preempted"]) for step in steps) > 100
    assert sum(end["events"][0] for end in ends) > 1000
    assert sum(end["prefix_cache"][2] for end in ends) > 1000
    assert {line["op"] for line in lines} >= {
        "finish_requests",
        "reset_prefix_cache",
        "set_pause_state",
    }


OFFLOADING = recorded_scenarios(Path(__file__).with_name("vllm_offload.jsonl.gz"))


class OffloadReplay(Replay):
    """Our scheduler and connector, given what vLLM's were given."""

    def __init__(self, args: dict[str, Any]) -> None:
        groups = groups_of(args)
        manager = KVCacheManager(
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
        super().__init__(args, manager, self.connector)
        self.windows = args["sliding_window"] > 0

    def check(self) -> None:
        super().check()
        self.connector.check()

    def schedule(self) -> dict[str, Any]:
        said = super().schedule()
        meta = self.output.kv_connector_metadata
        assert isinstance(meta, OffloadingMetadata)
        return said | {
            "loads": {str(number): self.copies(job) for number, job in meta.load_jobs.items()},
            "stores": {str(number): self.copies(job) for number, job in meta.store_jobs.items()},
            "flush": sorted(meta.jobs_to_flush),
        }

    def update_from_output(self, ended: list[int]) -> dict[str, Any]:
        outputs = self.outputs()
        self.scheduler.update_connector_output(ended)
        events = self.scheduler.take_events()
        of_host = [event for event in events if getattr(event, "medium", "GPU") == MEDIUM_CPU]
        return {
            "outputs": outputs,
            "gpu_events": len(events) - len(of_host),
            "cpu_events": summary([written_of_host(event) for event in of_host]),
        }

    def copies(self, job: TransferJob) -> list[Any]:
        chunks = dict.fromkeys(copy.chunk_id for copy in job.copies)
        parts = None if self.windows else [copy.part for copy in job.copies]
        return [job.req_id, [copy.gpu_block_id for copy in job.copies], list(chunks), parts]

    def reset_connector(self) -> None:
        self.connector.reset_cache()


@pytest.mark.deep
@pytest.mark.parametrize("name", OFFLOADING)
def test_every_copy_and_event_is_what_vllm_decided(name: str) -> None:
    first, *lines = OFFLOADING[name]
    assert list(OffloadReplay(first["args"]).differences(lines)) == []


def test_the_recording_of_offloading_has_what_it_is_for() -> None:
    lines = [line for lines in OFFLOADING.values() for line in lines]
    steps = [line["out"] for line in lines if line["op"] == "schedule"]
    events = [line["out"]["cpu_events"] for line in lines if line["op"] == "update_from_output"]
    assert sum(len(step["loads"]) for step in steps) > 100
    assert sum(len(step["stores"]) for step in steps) > 500
    assert sum(len(step["flush"]) for step in steps) > 50
    assert sum(event[0] for event in events) > 2000
    assert sum(event[1] for event in events) > 500
    assert {"finish_requests", "reset_connector"} <= {line["op"] for line in lines}
