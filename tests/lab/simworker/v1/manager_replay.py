"""Calls of vLLM's own `KVCacheManager`, recorded, and ours given the same.

Each line is a JSON object: an operation, its arguments, its result, and the state after it (free blocks,
usage, the free queue). Where a manager has `groups`, block ids are lists of lists, one for each group.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus, SamplingParams
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

HYBRID = Path(__file__).with_name("vllm_hybrid.jsonl.gz")
"""Managers with windows and hybrids. `tests/vllm/drive_hybrid.py` of commit 7b94846c recorded them."""
OF_THE_RECORDER = ("name", "block_size", "lookahead", "chunk", "external", "in_flight")
"""Arguments of a scenario that its manager does not get."""


def recorded(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines, without a call that only older schedulers make than the simulated one."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["op"] != "get_num_common_prefix_blocks":
                yield line


def group_of(kind: str, block_size: int, sliding_window: int = 0, **more: bool) -> KVCacheGroupSpec:
    shape: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
    if kind == "sliding_window":
        return KVCacheGroupSpec(
            ["layer"], SlidingWindowSpec(block_size, sliding_window=sliding_window, **shape), **more
        )
    return KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size, **shape), **more)


class Operations:
    """The manager and the requests of a scenario; a method for each operation."""

    manager: KVCacheManager

    def step(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        """Do one operation; return the outcome and the state after it."""
        if op != "new_request" and "request_id" in args:
            args = {
                ("request" if name == "request_id" else name): value for name, value in args.items()
            }
            args["request"] = self.requests[args["request"]]
        out = getattr(self, op)(**args)
        pool = self.manager.block_pool
        return {
            "out": out,
            "free_blocks": pool.get_num_free_blocks(),
            "usage": self.manager.usage,
            "free_queue": [one.block_id for one in pool.free_block_queue.get_all_free_blocks()],
        }

    def ids(self, blocks: KVCacheBlocks) -> list[Any]:
        ids = blocks.get_block_ids()
        return ids[0] if self.single else list(ids)

    def new_manager(
        self, num_blocks: int, groups: Any = (), prefix_cache_retention_interval: int | None = None,
        **args: Any,
    ) -> None:  # fmt: skip
        self.single = not groups
        self.requests: dict[str, Request] = {}
        if not groups:
            kind = {"kind": "full_attention", "block_size": args["block_size"]}
            groups = [kind | {"is_eagle_group": args["use_eagle"]}]
        config = KVCacheConfig(
            num_blocks, [], [group_of(**one) for one in groups], prefix_cache_retention_interval
        )
        for name in OF_THE_RECORDER:
            args.pop(name, None)
        self.manager = KVCacheManager(
            config, args.pop("max_model_len"), enable_kv_cache_events=True, **args
        )

    def new_request(
        self, request_id: str, prompt_token_ids: list[int], cache_salt: str | None, lora_name: str | None,
        lora_path: str, kv_cache_report_mode: str, **params: bool,
    ) -> Any:  # fmt: skip
        size = self.manager.block_pool.hash_block_size
        extra = {"kv_cache_report_mode": kv_cache_report_mode}
        request = self.requests[request_id] = Request(
            request_id,
            prompt_token_ids,
            SamplingParams(extra_args=extra, **params),
            # The recorder numbers an adapter by its name's length.
            lora_request=lora_name and LoRARequest(lora_name, len(lora_name), lora_path),
            cache_salt=cache_salt,
            block_hasher=get_request_block_hasher(size, sha256_cbor)
            if self.manager.enable_caching
            else None,
        )
        return {"block_hashes": [digest.hex() for digest in request.block_hashes]}

    def get_computed_blocks(self, request: Request) -> Any:
        blocks, num_tokens, boundary = self.manager.get_computed_blocks(request)
        out = {"block_ids": self.ids(blocks), "num_computed_tokens": num_tokens}
        if not self.single:
            request.shared_prefix_boundary = boundary
            out["shared_prefix_boundary"] = boundary
        return out

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        self.manager.record_prefix_cache_stats(request, num_hits)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_block_ids: Any = None,
        **options: Any,
    ) -> Any:
        if new_computed_block_ids is not None:
            groups = [new_computed_block_ids] if self.single else new_computed_block_ids
            blocks = self.manager.block_pool.blocks
            options["new_computed_blocks"] = self.manager.create_kv_cache_blocks(
                tuple([blocks[at] for at in ids] for ids in groups)
            )
        try:
            found = self.manager.allocate_slots(request, num_new_tokens, **options)
        except ValueError as error:
            return {"error": str(error)}
        return None if found is None else {"new_block_ids": self.ids(found)}

    def advance(self, request: Request, num_tokens: int) -> Any:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += num_tokens
        return {"num_computed_tokens": request.num_computed_tokens}

    def in_flight(self, request: Request, num_tokens: int) -> None:
        request.num_in_flight_tokens = num_tokens

    def append_tokens(self, request: Request, token_ids: list[int]) -> Any:
        before = len(request.block_hashes)
        request.append_output_token_ids(token_ids)
        return {"new_block_hashes": [digest.hex() for digest in request.block_hashes[before:]]}

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        self.manager.cache_blocks(request, num_computed_tokens)

    def preempt(self, request: Request) -> None:
        self.manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def free(self, request: Request) -> None:
        self.manager.free(self.requests.pop(request.request_id))

    def remove_skipped_blocks(self, request: Request, processed_computed_tokens: int) -> None:
        self.manager.remove_skipped_blocks(request.request_id, processed_computed_tokens)

    def evict_blocks(self, block_ids: list[int]) -> None:
        self.manager.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        return self.manager.reset_prefix_cache()

    def take_events(self) -> Any:
        # Through JSON, so that tuples become lists as in the recording.
        return msgspec.json.decode(msgspec.json.encode(self.manager.take_events()))

    def make_prefix_cache_stats(self) -> Any:
        # Hits of tiers below the GPU's, which no recording has.
        return asdict(self.manager.make_prefix_cache_stats()) | {"hits_by_source": {}}

    def get_block_ids(self, request: Request) -> Any:
        return self.ids(self.manager.get_blocks(request.request_id))
