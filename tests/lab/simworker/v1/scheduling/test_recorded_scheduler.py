"""vLLM's own scheduler, recorded step by step (`tests/vllm/record_scheduler.py`), and ours."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.v1.recorded_scenarios import Replay, groups_of, recorded_scenarios
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheConfig

SCENARIOS = recorded_scenarios(Path(__file__).parents[1] / "vllm_scheduler.jsonl.gz")


class SchedulerReplay(Replay):
    def __init__(self, args: dict[str, Any]) -> None:
        manager = KVCacheManager(
            KVCacheConfig(args["num_blocks"], [], groups_of(args)),
            args["max_model_len"],
            max_in_flight_tokens=args["max_num_batched_tokens"],
            enable_caching=args["enable_caching"],
            log_stats=True,
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


def written(event: CacheEvent) -> list[Any]:
    match event:
        case BlockStored():
            return ["stored", event.block_hashes, event.parent_block_hash, event.token_ids,
                    event.lora_name, event.group_idx]  # fmt: skip
        case BlockRemoved():
            return ["removed", event.block_hashes, event.group_idx]
        case AllBlocksCleared():
            return ["cleared"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_what_vllm_decided(name: str) -> None:
    first, *lines = SCENARIOS[name]
    assert list(SchedulerReplay(first["args"]).differences(lines)) == []


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
