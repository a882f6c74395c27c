"""vLLM's own scheduler and OffloadingConnector, recorded (`tests/vllm/record_offload.py`), and ours."""

import json
import os
import zlib
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v1.recorded_scenarios import Replay, groups_of, recorded_scenarios
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    MEDIUM_CPU,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.offload.pool import CPUOffloadingManager
from warmpath.lab.simworker.v1.offload.transfer import OffloadingMetadata, TransferJob
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheConfig

SCENARIOS = recorded_scenarios(
    Path(
        os.environ.get("WARMPATH_OFFLOAD_RECORDING")
        or Path(__file__).parents[1] / "vllm_offload.jsonl.gz"
    )
)


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
            "cpu_events": summary([written(event) for event in of_host]),
        }

    def copies(self, job: TransferJob) -> list[Any]:
        chunks = dict.fromkeys(copy.chunk_id for copy in job.copies)
        parts = None if self.windows else [copy.part for copy in job.copies]
        return [job.req_id, [copy.gpu_block_id for copy in job.copies], list(chunks), parts]

    def reset_connector(self) -> None:
        self.connector.reset_cache()


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


@pytest.mark.deep
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_copy_and_event_is_what_vllm_decided(name: str) -> None:
    first, *lines = SCENARIOS[name]
    assert list(OffloadReplay(first["args"]).differences(lines)) == []


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
