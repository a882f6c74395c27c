"""Drive vLLM's own scheduler with seeded requests, and record every step.

    VLLM/bin/python tests/vllm/record_scheduler.py --model tiny-llama --out recording.jsonl.gz

Needs vLLM 0.32 and a folder with any small model's configuration (`make_tiny_model.py` of
`../shared/vllm-cpu` writes one); no weights are loaded and nothing is computed: this script plays the
model, and samples tokens itself. Each line is one call of the scheduler:

    op       the method, or `new_scheduler`, which starts a scenario
    args     what it was given (a prompt as [which prefix, its length, first further token, number of
             further tokens], further tokens 7 apart; prefix k is the tokens from 100 k on, 3 apart)
    out      what it returned. `schedule`: requests with their tokens, in order; their new block ids,
             of each group; requests preempted and finished since the last step.
             `update_from_output`: answers as [request, tokens, cached tokens, reason it ended], and
             how many events there were, with the CRC-32 of them as JSON
    running, waiting, free
             afterwards: ids in order, free blocks

A request samples the token (31 x its number + 7 x its tokens so far) mod 1000.
One file, since vLLM's environment runs it alone.
"""

import argparse
import gzip
import json
import os
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.pop("PYTHONHASHSEED", None)  # leave vLLM's own seed of the hash chain
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)  # fmt: skip
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)  # fmt: skip
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from written import checksum, prompt_of, written

LORAS = {"one": 1, "two": 2, "three": 3}


@dataclass(frozen=True)
class Scenario:
    """One scheduler, and the requests it gets."""

    name: str
    num_blocks: int = 60
    block_size: int = 4
    max_model_len: int = 120
    max_num_seqs: int = 6
    max_num_batched_tokens: int = 48
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    enable_caching: bool = True
    watermark: float = 0.0
    max_loras: int = 0
    sliding_window: int = 0
    steps: int = 70
    arrivals: float = 0.3
    """Chance that a request arrives before a step."""


SCENARIOS = [
    Scenario("fcfs"),
    Scenario("fcfs-tight", num_blocks=24, max_model_len=60, steps=110),
    Scenario("fcfs-tight-no-caching", num_blocks=24, max_model_len=60, enable_caching=False),
    Scenario("priority", policy="priority"),
    Scenario("priority-tight", num_blocks=24, max_model_len=60, policy="priority", steps=110),
    Scenario("priority-tight-chunks", num_blocks=24, max_model_len=60, policy="priority",
             max_num_batched_tokens=6, max_num_seqs=6, steps=110, arrivals=0.25,
             scheduler_reserve_full_isl=False),
    Scenario("whole-prompts", max_num_batched_tokens=120, enable_chunked_prefill=False),
    Scenario("whole-prompts-tight", num_blocks=24, max_model_len=60, max_num_batched_tokens=60,
             enable_chunked_prefill=False, steps=90),
    Scenario("long-prefill-threshold", long_prefill_token_threshold=8, max_num_batched_tokens=32),
    Scenario("long-prefill-threshold-adaptive", long_prefill_token_threshold=4,
             long_prefill_token_threshold_adaptive=True),
    Scenario("small-budget", max_num_batched_tokens=7, max_num_seqs=5, arrivals=0.15),
    Scenario("budget-and-slots-apart", max_num_batched_tokens=40, max_num_scheduled_tokens=20,
             max_num_active_seqs=3),
    Scenario("first-chunk-must-fit", num_blocks=24, max_model_len=60,
             scheduler_reserve_full_isl=False, max_num_batched_tokens=16, steps=110),
    Scenario("watermark", num_blocks=30, max_model_len=60, watermark=0.2),
    Scenario("loras", max_loras=1),
    Scenario("sliding-window", num_blocks=60, max_model_len=80, sliding_window=10),
    Scenario("block-16", num_blocks=24, block_size=16, max_model_len=160,
             max_num_batched_tokens=128),
]  # fmt: skip


@dataclass
class Driver:
    """A scheduler, and the lines recorded so far."""

    scenario: Scenario
    model: str
    rng: random.Random
    lines: list[dict[str, Any]]
    alive: list[str] = field(default_factory=list)
    created: int = 0

    def __post_init__(self) -> None:
        s = self.scenario
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=s.max_num_seqs,
                max_num_batched_tokens=s.max_num_batched_tokens,
                max_num_scheduled_tokens=s.max_num_scheduled_tokens,
                max_num_active_seqs=s.max_num_active_seqs,
                max_model_len=s.max_model_len,
                policy=s.policy,
                enable_chunked_prefill=s.enable_chunked_prefill,
                long_prefill_token_threshold=s.long_prefill_token_threshold,
                long_prefill_token_threshold_adaptive=s.long_prefill_token_threshold_adaptive,
                scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
                watermark=s.watermark,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            model_config=ModelConfig(
                model=self.model, dtype="float32", seed=1, max_model_len=s.max_model_len
            ),
            cache_config=CacheConfig(
                block_size=s.block_size, enable_prefix_caching=s.enable_caching
            ),
        )
        # vLLM's CPU platform changes these settings while the configuration is made.
        config.scheduler_config.enable_chunked_prefill = s.enable_chunked_prefill
        config.cache_config.enable_prefix_caching = s.enable_caching
        config.cache_config.num_gpu_blocks = s.num_blocks
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        if s.max_loras:
            config.lora_config = LoRAConfig(max_loras=s.max_loras, max_lora_rank=8)
        shape = {"block_size": s.block_size, "num_kv_heads": 1, "head_size": 1}
        specs = [FullAttentionSpec(**shape, dtype=torch.float32)]
        if s.sliding_window:
            specs.append(
                SlidingWindowSpec(**shape, dtype=torch.float32, sliding_window=s.sliding_window)
            )
        self.scheduler = Scheduler(
            config,
            KVCacheConfig(
                num_blocks=s.num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[
                    KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(specs)
                ],
            ),
            StructuredOutputManager(config),
            block_size=s.block_size,
            hash_block_size=s.block_size,
            log_stats=True,
        )
        self.hasher = get_request_block_hasher(s.block_size, sha256_cbor)
        self.record("new_scheduler", asdict(s), None)

    def record(self, op: str, args: Any, out: Any) -> None:
        scheduler = self.scheduler
        self.lines.append({
            "op": op, "args": args, "out": out,
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        })  # fmt: skip

    def add_request(self) -> None:
        s, rng = self.scenario, self.rng
        prefix, length, more = rng.randrange(3), rng.randrange(s.max_model_len // 2), 0
        if rng.random() < 0.8 or not length:
            more = rng.randint(1, s.max_model_len // 3)
        shape = [prefix, length, rng.randrange(1000), more]
        prompt = prompt_of(shape)
        longest = s.max_model_len - len(prompt)
        args = {
            "request_id": str(self.created),
            "prompt": shape,
            "max_tokens": rng.randint(1, min(longest, 30)),
            "priority": rng.randrange(3) if s.policy == "priority" else 0,
            "arrival_time": self.created // 2,
            "cache_salt": rng.choice([None] * 7 + ["salt"]),
            "lora_name": rng.choice([None, *LORAS]) if s.max_loras else None,
            "skip_reading_prefix_cache": rng.random() < 0.04,
        }
        self.created += 1
        name = args["lora_name"]
        request = Request(
            args["request_id"],
            list(prompt),
            SamplingParams(
                max_tokens=args["max_tokens"],
                ignore_eos=True,
                skip_reading_prefix_cache=args["skip_reading_prefix_cache"],
            ),
            None,
            arrival_time=args["arrival_time"],
            priority=args["priority"],
            cache_salt=args["cache_salt"],
            lora_request=name and LoRARequest(name, LORAS[name], f"adapters/{name}"),
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        self.alive.append(request.request_id)
        self.record("add_request", args, None)

    def step(self) -> None:
        scheduler, rng = self.scheduler, self.rng
        output = scheduler.schedule()
        cached = output.scheduled_cached_reqs
        blocks = {data.req_id: data.block_ids for data in output.scheduled_new_reqs}
        blocks |= {
            name: ids or [] for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True)
        }
        self.record("schedule", {}, {
            "scheduled": list(output.num_scheduled_tokens.items()),
            "new_block_ids": [blocks[name] for name in output.num_scheduled_tokens],
            "preempted": sorted(output.preempted_req_ids or ()),
            "finished": sorted(output.finished_req_ids), **self.copied(output),
        })  # fmt: skip
        if rng.random() < 0.04 and scheduler.running:
            self.finish(rng.choice(scheduler.running).request_id)
        sampled = {}
        for name in output.num_scheduled_tokens:
            request = scheduler.requests.get(name)
            whole = request is not None and request.num_computed_tokens >= request.num_tokens
            sampled[name] = [sample(request)] if whole else []
        ended = self.ended(output)
        events: list[Any] = []
        publish = scheduler.kv_event_publisher.publish
        scheduler.kv_event_publisher.publish = lambda batch: events.extend(batch.events)
        outputs = scheduler.update_from_output(output, ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: number for number, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[], **ended,
        ))  # fmt: skip
        scheduler.kv_event_publisher.publish = publish
        args, told = self.told(outputs, events)
        answers = outputs[0].outputs if 0 in outputs else []
        self.record("update_from_output", args, {
            "outputs": [
                [one.request_id, list(one.new_token_ids),
                 one.prefill_stats and one.prefill_stats.num_cached_tokens,
                 one.finish_reason and str(one.finish_reason)]
                for one in answers
            ],
            **told,
        })  # fmt: skip
        for one in answers:
            if one.finish_reason:
                self.alive.remove(one.request_id)

    def copied(self, output: Any) -> dict[str, Any]:  # noqa: ARG002  nothing is
        """Return what a step's line tells of the copies that begin with it."""
        return {}

    def ended(self, output: Any) -> dict[str, Any]:  # noqa: ARG002  none has begun
        """Return what the model runner's output tells of the copies that end with a step."""
        return {}

    def told(self, outputs: Any, events: list[Any]) -> tuple[Any, dict[str, Any]]:
        """Return what an update's line has as arguments, and beside the answers."""
        stats = outputs[0].scheduler_stats
        cache = stats.prefix_cache_stats
        return {}, {
            "events": [len(events), checksum([written(event) for event in events])],
            "waiting": stats.num_waiting_reqs, "skipped": stats.num_skipped_waiting_reqs,
            "usage": stats.kv_cache_usage,
            "prefix_cache": [cache.requests, cache.queries, cache.hits, cache.preempted_requests,
                             cache.preempted_queries, cache.preempted_hits],
        }  # fmt: skip

    def finish(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.alive.remove(request_id)
        self.record("finish_requests", [request_id], None)

    def reset(self, reset_running_requests: bool) -> None:
        done = self.scheduler.reset_prefix_cache(reset_running_requests)
        self.record("reset_prefix_cache", [reset_running_requests], done)

    def pause(self, state: str) -> None:
        self.scheduler.set_pause_state(PauseState[state])
        self.record("set_pause_state", [state], self.scheduler.get_num_unfinished_requests())

    def run(self) -> None:
        s, rng = self.scenario, self.rng
        for number in range(s.steps):
            while rng.random() < s.arrivals:
                self.add_request()
            draw = rng.random()
            if draw < 0.02 and self.alive:
                self.finish(rng.choice(self.alive))
            elif draw < 0.04:
                self.reset(rng.random() < 0.5)
            if number in (s.steps // 3, 2 * s.steps // 3):
                self.pause("PAUSED_ALL" if number > s.steps // 2 else "PAUSED_NEW")
            self.step()
            if number in (s.steps // 3 + 4, 2 * s.steps // 3 + 2):
                self.pause("UNPAUSED")
        while self.scheduler.has_requests():
            self.step()


def sample(request: Request) -> int:
    return (31 * int(request.request_id) + 7 * request.num_tokens) % 1000


def record(description: str, driver: type[Driver], scenarios: Iterable[Scenario]) -> None:
    """Run the scenarios with `driver`, seeded, and write its lines to the file that `--out` names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="a folder with a small model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    init_none_hash(sha256_cbor)
    lines: list[dict[str, Any]] = []
    for scenario in scenarios:
        rng = random.Random(f"{args.seed} {scenario.name}")
        driver(scenario, args.model, rng, lines).run()
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    record("Record vLLM's scheduler, step by step.", Driver, SCENARIOS)
