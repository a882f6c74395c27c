"""Drive vLLM's own `KVCacheManager` with several groups of layers, and record every outcome.

    VLLM/bin/python tests/vllm/drive_hybrid.py --out tests/lab/simworker/v1/vllm_hybrid.jsonl.gz

Needs vLLM 0.32, no model. The lines are those that `lab/simworker/v1/replay/replay_trace.py` reads. They
have sliding windows, groups of several kinds and block sizes,
hashes finer than blocks, drafters that read some groups, sparse retention, tokens in flight.

Made with the defaults: seed 1, 35 actions a scenario. The same bytes every time.
"""

import argparse
import gzip
import json
import os
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.pop("PYTHONHASHSEED", None)  # leave vLLM's own seed of the hash chain
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import msgspec
import torch
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)  # fmt: skip
from vllm.v1.request import Request, RequestStatus

Group = tuple[int, int, bool]
"""Block size, window (0: full attention), whether a drafter reads the group."""


@dataclass(frozen=True)
class Scenario:
    """One manager, and how it is used."""

    name: str
    num_blocks: int
    groups: tuple[Group, ...]
    scheduler_block_size: int
    hash_block_size: int
    max_model_len: int = 64
    enable_caching: bool = True
    use_eagle: bool = False
    max_in_flight_tokens: int | None = None
    num_prefill_lookahead: int = 0
    prefix_cache_retention_interval: int | None = None
    watermark: float = 0.0
    lookahead: int = 0
    chunk: int | None = None
    external: bool = False
    in_flight: bool = False


FULL, SLIDE = (4, 0, False), (4, 8, False)
HYBRID = Scenario("full-and-window", 60, (FULL, SLIDE), 4, 4)
COARSE = Scenario("coarse-full", 50, ((8, 0, False), (4, 10, False)), 8, 4)
SCENARIOS = [
    Scenario("window", 24, ((4, 10, False),), 4, 4),
    Scenario("window-of-one", 24, ((4, 1, False),), 4, 4),
    Scenario("window-eagle", 24, ((4, 9, True),), 4, 4, use_eagle=True, lookahead=2),
    HYBRID,
    replace(HYBRID, name="tight", num_blocks=26),
    replace(HYBRID, name="two-alike", groups=(FULL, SLIDE, SLIDE), num_blocks=70),
    replace(HYBRID, name="two-windows", groups=(FULL, (4, 5, False), (4, 13, False)), num_blocks=70),
    replace(HYBRID, name="windows-only", groups=((4, 6, False), (4, 12, False))),
    replace(HYBRID, name="chunks", chunk=10, max_in_flight_tokens=10, num_blocks=40),
    replace(HYBRID, name="in-flight", chunk=12, in_flight=True),
    replace(HYBRID, name="external", external=True),
    replace(HYBRID, name="no-caching", enable_caching=False),
    replace(HYBRID, name="watermark", watermark=0.15, num_blocks=40),
    replace(HYBRID, name="eagle", use_eagle=True, lookahead=2),
    replace(HYBRID, name="eagle-window", groups=(FULL, (4, 8, True)), use_eagle=True, lookahead=1),
    replace(HYBRID, name="eagle-of-three", groups=(FULL, (4, 6, True), (4, 11, False)), use_eagle=True),
    COARSE,
    replace(COARSE, name="coarse-window", groups=((4, 0, False), (8, 12, False))),
    replace(COARSE, name="fine-hashes", hash_block_size=2),
    replace(COARSE, name="coarse-eagle", groups=((8, 0, True), (4, 10, True)), use_eagle=True),
    replace(COARSE, name="coarse-eagle-window", groups=((8, 0, False), (4, 10, True)), use_eagle=True),
    replace(COARSE, name="two-full", groups=((4, 0, False), (8, 0, False))),
    replace(COARSE, name="lookahead", use_eagle=True, num_prefill_lookahead=4, lookahead=3),
    replace(COARSE, name="sparse", prefix_cache_retention_interval=0),
    replace(COARSE, name="sparse-16", prefix_cache_retention_interval=16, groups=((4, 0, False), (4, 6, False))),
    replace(COARSE, name="sparse-eagle", prefix_cache_retention_interval=16, use_eagle=True,
            groups=((4, 0, False), (4, 6, True))),
]  # fmt: skip


class Driver:
    """Plays the scheduler, at random."""

    def __init__(self, scenario: Scenario, rng: random.Random, lines: list[dict[str, Any]]) -> None:
        self.s, self.rng, self.lines = scenario, rng, lines
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.loading: list[Request] = []
        s = scenario
        groups = [KVCacheGroupSpec(["layer"], spec(size, window), is_eagle_group=eagle)
                  for size, window, eagle in s.groups]  # fmt: skip
        config = KVCacheConfig(
            s.num_blocks, [], groups,
            prefix_cache_retention_interval=s.prefix_cache_retention_interval,
        )  # fmt: skip
        self.manager = KVCacheManager(
            config, s.max_model_len, s.scheduler_block_size, s.hash_block_size,
            s.max_in_flight_tokens, enable_caching=s.enable_caching, use_eagle=s.use_eagle,
            num_prefill_lookahead=s.num_prefill_lookahead, log_stats=True,
            enable_kv_cache_events=True, watermark=s.watermark,
        )  # fmt: skip
        self.prefixes = [self.tokens(s.max_model_len * 2 // 3) for _ in range(2)]
        args = asdict(s) | {"groups": [
            {"kind": "sliding_window" if window else "full_attention", "block_size": size,
             "sliding_window": window or None, "is_eagle_group": eagle}
            for size, window, eagle in s.groups
        ]}  # fmt: skip
        self.record("new_manager", args)

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(30) for _ in range(count)]

    def record(self, op: str, args: dict[str, Any], out: Any = None) -> None:
        pool = self.manager.block_pool
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        self.lines.append({
            "op": op, "args": args, "out": out, "free_blocks": pool.get_num_free_blocks(),
            "usage": self.manager.usage, "free_queue": free,
        })  # fmt: skip

    def new_request(self) -> None:
        rng = self.rng
        request_id = f"r{len(self.requests)}"
        prompt = rng.choice(self.prefixes)
        prompt = prompt[: rng.randrange(len(prompt) + 1)] + self.tokens(rng.choice([0, 1, 3, 9]))
        prompt = prompt or [1]
        lora = rng.choice([None] * 9 + ["tuned"])
        salt = rng.choice([None] * 9 + ["salt"])
        mode = rng.choice(["incremental"] * 9 + ["full"])
        skip = rng.random() < 0.04
        params = SamplingParams(
            max_tokens=99, skip_reading_prefix_cache=skip, extra_args={"kv_cache_report_mode": mode}
        )
        hasher = get_request_block_hasher(self.s.hash_block_size, sha256_cbor)
        request = Request(
            request_id, prompt, params, None, cache_salt=salt,
            lora_request=LoRARequest(lora, 5, "path") if lora else None,
            block_hasher=hasher if self.s.enable_caching else None,
        )  # fmt: skip
        self.requests[request_id] = request
        self.waiting.append(request)
        self.record("new_request", {
            "request_id": request_id, "prompt_token_ids": prompt, "cache_salt": salt,
            "lora_name": lora, "lora_path": "path", "skip_reading_prefix_cache": skip,
            "kv_cache_report_mode": mode,
        }, {"block_hashes": [digest.hex() for digest in request.block_hashes]})  # fmt: skip

    def allocate(self, request: Request, new: int, found: Any = None, **options: Any) -> bool:
        args = {"request_id": request.request_id, "num_new_tokens": new, **options}
        if found is not None:
            args["new_computed_block_ids"] = list(found.get_block_ids())
        blocks = self.manager.allocate_slots(request, new, new_computed_blocks=found, **options)
        out = None if blocks is None else {"new_block_ids": list(blocks.get_block_ids())}
        self.record("allocate_slots", args, out)
        return blocks is not None

    def advance(self, request: Request, count: int) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += count
        args = {"request_id": request.request_id, "num_tokens": count}
        self.record("advance", args, {"num_computed_tokens": request.num_computed_tokens})

    def append(self, request: Request, count: int) -> None:
        before = len(request.block_hashes)
        tokens = self.tokens(count)
        request.append_output_token_ids(tokens)
        self.record(
            "append_tokens", {"request_id": request.request_id, "token_ids": tokens},
            {"new_block_hashes": [digest.hex() for digest in request.block_hashes[before:]]},
        )  # fmt: skip

    def admit(self) -> None:
        s, rng = self.s, self.rng
        request = self.waiting[0]
        found, hits, boundary = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        self.record("get_computed_blocks", {"request_id": request.request_id}, {
            "block_ids": list(found.get_block_ids()), "num_computed_tokens": hits,
            "shared_prefix_boundary": boundary,
        })  # fmt: skip
        options = {
            "num_new_computed_tokens": hits, "num_lookahead_tokens": s.lookahead,
            "full_sequence_must_fit": rng.random() < 0.5,
            "reserved_blocks": rng.choice([0, 0, 0, 3]), "has_scheduled_reqs": bool(self.running),
        }  # fmt: skip
        todo = request.num_tokens - hits
        size = s.scheduler_block_size
        external = 0
        if s.external and todo > size and rng.random() < 0.6:
            external = rng.randint(1, (todo - 1) // size) * size
        if external:
            options |= {"num_external_computed_tokens": external, "delay_cache_blocks": True}
        new = 0 if external else min(todo, s.chunk or todo)
        if not self.allocate(request, new, found, **options):
            return
        self.waiting.pop(0)
        (self.loading if external else self.running).append(request)
        self.manager.record_prefix_cache_stats(request, hits)
        args = {"request_id": request.request_id, "num_hits": hits}
        self.record("record_prefix_cache_stats", args)
        self.advance(request, hits + external + new)

    def loaded(self) -> None:
        request = self.loading.pop(0)
        self.manager.cache_blocks(request, request.num_computed_tokens)
        self.record("cache_blocks", {
            "request_id": request.request_id, "num_computed_tokens": request.num_computed_tokens,
        })  # fmt: skip
        self.running.append(request)

    def step(self) -> None:
        s, rng = self.s, self.rng
        request = rng.choice(self.running)
        todo = request.num_tokens - request.num_computed_tokens
        if todo == 0:
            todo = min(rng.choice([1, 1, 2, 5]), s.max_model_len - request.num_tokens)
            if todo == 0:
                self.end(request)
                return
            self.append(request, todo)
        new = min(todo, s.chunk or todo)
        drafts = rng.randint(0, s.lookahead) if new == todo else 0
        drafts = min(drafts, s.max_model_len - request.num_tokens)
        if s.in_flight:
            request.num_in_flight_tokens = rng.randint(0, min(new + 4, request.num_computed_tokens))
            self.record("in_flight", {
                "request_id": request.request_id, "num_tokens": request.num_in_flight_tokens,
            })  # fmt: skip
        while not self.allocate(request, new + drafts, num_lookahead_tokens=s.lookahead):
            victim = self.running.pop()
            self.preempt(victim)
            if victim is request:
                return
        accepted = rng.randint(0, drafts)
        if accepted:
            self.append(request, accepted)
        self.advance(request, new + accepted)

    def preempt(self, request: Request) -> None:
        self.manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.insert(0, request)
        self.record("preempt", {"request_id": request.request_id})

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.free(request)
        self.record("free", {"request_id": request.request_id})

    def end_all(self) -> None:
        while self.loading:
            self.loaded()
        while self.running:
            self.end(self.rng.choice(self.running))

    def skip(self) -> None:
        request = self.rng.choice(self.running)
        done = self.rng.randint(0, request.num_computed_tokens)
        self.manager.remove_skipped_blocks(request.request_id, done)
        self.record("remove_skipped_blocks", {
            "request_id": request.request_id, "processed_computed_tokens": done,
        })  # fmt: skip

    def inspect(self) -> None:
        request_id = self.rng.choice(self.running).request_id
        ids = list(self.manager.get_block_ids(request_id))
        self.record("get_block_ids", {"request_id": request_id}, ids)

    def evict(self) -> None:
        blocks = sorted(self.rng.sample(range(1, self.s.num_blocks), 2))
        self.manager.evict_blocks(blocks)
        self.record("evict_blocks", {"block_ids": blocks})

    def reset(self) -> None:
        self.record("reset_prefix_cache", {}, self.manager.reset_prefix_cache())

    def take_events(self) -> None:
        self.record("take_events", {}, msgspec.to_builtins(self.manager.take_events()))

    def stats(self) -> None:
        out = asdict(self.manager.make_prefix_cache_stats())
        self.record("make_prefix_cache_stats", {}, out)

    def run(self, steps: int) -> None:
        for number in range(1, steps + 1):
            running = bool(self.running)
            weights = {
                self.new_request: 14 * (len(self.waiting) < 3), self.admit: 22 * bool(self.waiting),
                self.step: 36 * running, self.loaded: 10 * bool(self.loading),
                (lambda: self.end(self.rng.choice(self.running))): 7 * running,
                self.skip: running, self.inspect: 2 * running, self.evict: 1,
                self.reset: 1, self.stats: 1, self.take_events: 7,
            }  # fmt: skip
            self.rng.choices(list(weights), list(weights.values()))[0]()
            if number % 24 == 0:
                self.end_all()
                if number % 48 == 0:
                    self.reset()
        self.take_events()
        self.stats()


def spec(size: int, window: int) -> Any:
    shape = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if window:
        return SlidingWindowSpec(size, **shape, sliding_window=window)
    return FullAttentionSpec(size, **shape)


def write(lines: list[dict[str, Any]], out: Path) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the .jsonl.gz to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=35, help="random actions per scenario")
    args = parser.parse_args()
    init_none_hash(sha256_cbor)
    lines: list[dict[str, Any]] = []
    for number, scenario in enumerate(SCENARIOS):
        Driver(scenario, random.Random(args.seed * 1000 + number), lines).run(args.steps)
    write(lines, args.out)


if __name__ == "__main__":
    main()
