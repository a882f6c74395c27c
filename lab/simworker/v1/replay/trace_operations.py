"""The operations in recordings of the manager (`lab/simworker/v1/replay/replay_trace.py`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock, KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus, SamplingParams
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)


class BadTraceError(ValueError):
    """The line is not a valid operation; the message names the line and the field."""


class TraceArgs:
    """One line's `args`. Its methods raise BadTraceError naming the field."""

    def __init__(self, args: Any) -> None:
        if not isinstance(args, dict):
            raise BadTraceError("args: is not an object")
        self._args: Mapping[str, Any] = args

    def __contains__(self, name: str) -> bool:
        return self._args.get(name) is not None

    def names(self) -> set[str]:
        return set(self._args)

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a value, or `default` if it is missing or null."""
        value = self._args.get(name, default)
        if value is not None or default is not None:
            self._check(name, value, kind)
        return value

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a value that must be there."""
        if name not in self._args:
            raise BadTraceError(f"args.{name}: missing")
        self._check(name, self._args[name], kind)
        return self._args[name]

    def ints(self, name: str) -> list[int]:
        """Return a value that must be a list of integers of 0 or more."""
        values = self.need(name, list)
        if not all(isinstance(value, int) and value >= 0 for value in values):
            raise BadTraceError(f"args.{name}: must be a list of integers from 0")
        return list(values)

    @staticmethod
    def _check(name: str, value: Any, kind: type | tuple[type, ...]) -> None:
        if isinstance(value, bool) and kind is not bool:
            raise BadTraceError(f"args.{name}: must not be a boolean")
        if not isinstance(value, kind):
            raise BadTraceError(f"args.{name}: {type(value).__name__} is the wrong type")


_ALLOCATE = {
    "num_new_computed_tokens": int, "num_lookahead_tokens": int,
    "num_external_computed_tokens": int, "delay_cache_blocks": bool, "num_encoder_tokens": int,
    "full_sequence_must_fit": bool, "reserved_blocks": int, "has_scheduled_reqs": bool,
    "num_draft_tokens": int,
}  # fmt: skip

MOST_BLOCKS = 1 << 24
"""A recording with more blocks is damaged: each of its lines would hold the whole free queue."""


class TraceOperations:
    """The manager and the requests of the scenario under replay."""

    def __init__(self) -> None:
        self._manager: KVCacheManager | None = None
        self._requests: dict[str, Request] = {}
        self._single = True
        self._hash_block_size = 0
        self._operations: dict[str, Callable[[TraceArgs], Any]] = {
            name: getattr(self, f"_{name}")
            for name in (
                "new_manager", "new_request", "get_computed_blocks", "record_prefix_cache_stats",
                "allocate_slots", "advance", "append_tokens", "cache_blocks", "preempt", "free",
                "evict_blocks", "reset_prefix_cache", "take_events", "make_prefix_cache_stats",
                "get_block_ids", "get_num_common_prefix_blocks", "remove_skipped_blocks", "in_flight",
                "free_block_hashes",
            )
        }  # fmt: skip

    def step(self, op: Any, args: TraceArgs) -> dict[str, Any]:
        """Do one operation; return the outcome and the state after it."""
        operation = self._operations.get(op) if isinstance(op, str) else None
        if operation is None:
            raise BadTraceError("op: unknown")
        out = operation(args)
        pool = self.manager.block_pool
        return {
            "out": out,
            "free_blocks": pool.get_num_free_blocks(),
            "usage": self.manager.usage,
            "free_queue": [b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
        }

    @property
    def manager(self) -> KVCacheManager:
        if self._manager is None:
            raise BadTraceError("op: before any new_manager")
        return self._manager

    def _request(self, args: TraceArgs) -> Request:
        request = self._requests.get(args.need("request_id", str))
        if request is None:
            raise BadTraceError("args.request_id: no such request")
        return request

    def _ids(self, blocks: KVCacheBlocks) -> list[Any]:
        ids = blocks.get_block_ids()
        return ids[0] if self._single else list(ids)

    def _new_manager(self, args: TraceArgs) -> None:
        self._single = "groups" not in args
        block_size = args.get("block_size", int)
        groups = [
            _group(TraceArgs(group))
            for group in args.get("groups", list)
            or [{"kind": "full_attention", "block_size": block_size}]
        ]
        if self._single and args.get("use_eagle", bool, default=False):
            groups[0].is_eagle_group = True
        self._requests = {}
        num_blocks = args.need("num_blocks", int)
        if not 1 <= num_blocks <= MOST_BLOCKS:
            raise BadTraceError(f"args.num_blocks: {num_blocks}, from 1 to {MOST_BLOCKS}")
        try:
            self._manager = KVCacheManager(
                KVCacheConfig(
                    num_blocks,
                    [],
                    groups,
                    prefix_cache_retention_interval=args.get(
                        "prefix_cache_retention_interval", int
                    ),
                ),
                args.need("max_model_len", int),
                scheduler_block_size=args.get("scheduler_block_size", int),
                hash_block_size=args.get("hash_block_size", int),
                max_in_flight_tokens=args.get("max_in_flight_tokens", int),
                enable_caching=args.get("enable_caching", bool, default=True),
                use_eagle=args.get("use_eagle", bool, default=False),
                num_prefill_lookahead=args.get("num_prefill_lookahead", int, default=0),
                enable_kv_cache_events=True,
                watermark=args.get("watermark", (int, float), default=0.0),
            )
        except ValueError as error:
            raise BadTraceError(f"args.{error}") from error
        self._hash_block_size = self._manager.block_pool.hash_block_size

    def _new_request(self, args: TraceArgs) -> dict[str, Any]:
        request_id = args.need("request_id", str)
        if request_id in self._requests:
            raise BadTraceError("args.request_id: is in use")
        lora = None
        name = args.get("lora_name", str)
        if name:
            # The recorder numbers an adapter by its name's length.
            number = args.get("lora_int_id", int, default=len(name))
            lora = LoRARequest(name, number, args.need("lora_path", str))
        hasher = None
        if self.manager.enable_caching:
            hasher = get_request_block_hasher(self._hash_block_size, sha256_cbor)
        params = SamplingParams(
            skip_reading_prefix_cache=args.get("skip_reading_prefix_cache", bool, default=False),
            extra_args={
                "kv_cache_report_mode": args.get("kv_cache_report_mode", str, default="incremental")
            },
        )
        request = self._requests[request_id] = Request(
            request_id,
            args.ints("prompt_token_ids"),
            params,
            lora_request=lora,
            cache_salt=args.get("cache_salt", str),
            block_hasher=hasher,
        )
        return {"block_hashes": [digest.hex() for digest in request.block_hashes]}

    def _get_computed_blocks(self, args: TraceArgs) -> dict[str, Any]:
        request = self._request(args)
        blocks, num_tokens, boundary = self.manager.get_computed_blocks(request)
        out = {"block_ids": self._ids(blocks), "num_computed_tokens": num_tokens}
        if not self._single:
            request.shared_prefix_boundary = boundary
            out["shared_prefix_boundary"] = boundary
        return out

    def _record_prefix_cache_stats(self, args: TraceArgs) -> None:
        self.manager.record_prefix_cache_stats(self._request(args), args.need("num_hits", int))

    def _allocate_slots(self, args: TraceArgs) -> dict[str, Any] | None:
        request = self._request(args)
        unknown = args.names() - {
            *_ALLOCATE,
            "request_id",
            "num_new_tokens",
            "new_computed_block_ids",
        }
        if unknown:
            raise BadTraceError(f"args.{min(unknown)}: unknown")
        options = {name: args.need(name, kind) for name, kind in _ALLOCATE.items() if name in args}
        num_new_tokens = args.need("num_new_tokens", int)
        found = None
        if "new_computed_block_ids" in args:
            found = self._blocks(args.need("new_computed_block_ids", list))
        try:
            blocks = self.manager.allocate_slots(
                request, num_new_tokens, new_computed_blocks=found, **options
            )
        except ValueError as error:
            return {"error": str(error)}
        return None if blocks is None else {"new_block_ids": self._ids(blocks)}

    def _blocks(self, ids: list[Any]) -> KVCacheBlocks:
        blocks = self.manager.block_pool.blocks
        groups: list[list[KVCacheBlock]] = []
        for group in [ids] if self._single else ids:
            if not isinstance(group, list):
                raise BadTraceError("args.new_computed_block_ids: must be a list for each group")
            for at in group:
                if not isinstance(at, int) or not 0 <= at < len(blocks):
                    raise BadTraceError(
                        f"args.new_computed_block_ids: {at}, there are {len(blocks)} blocks"
                    )
            groups.append([blocks[at] for at in group])
        return self.manager.create_kv_cache_blocks(tuple(groups))

    def _advance(self, args: TraceArgs) -> dict[str, int]:
        request = self._request(args)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += args.need("num_tokens", int)
        return {"num_computed_tokens": request.num_computed_tokens}

    def _in_flight(self, args: TraceArgs) -> None:
        self._request(args).num_in_flight_tokens = args.need("num_tokens", int)

    def _append_tokens(self, args: TraceArgs) -> dict[str, list[str]]:
        request = self._request(args)
        before = len(request.block_hashes)
        request.append_output_token_ids(args.ints("token_ids"))
        return {"new_block_hashes": [digest.hex() for digest in request.block_hashes[before:]]}

    def _cache_blocks(self, args: TraceArgs) -> None:
        self.manager.cache_blocks(self._request(args), args.need("num_computed_tokens", int))

    def _preempt(self, args: TraceArgs) -> None:
        request = self._request(args)
        self.manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def _free(self, args: TraceArgs) -> None:
        request = self._request(args)
        self.manager.free(request)
        del self._requests[request.request_id]

    def _free_block_hashes(self, args: TraceArgs) -> None:
        self.manager.free_block_hashes(self._request(args))

    def _remove_skipped_blocks(self, args: TraceArgs) -> None:
        self.manager.remove_skipped_blocks(
            self._request(args).request_id, args.need("processed_computed_tokens", int)
        )

    def _evict_blocks(self, args: TraceArgs) -> None:
        block_ids = args.ints("block_ids")
        known = len(self.manager.block_pool.blocks)
        for block_id in block_ids:
            if block_id >= known:
                raise BadTraceError(f"args.block_ids: {block_id}, there are {known} blocks")
        self.manager.evict_blocks(block_ids)

    def _reset_prefix_cache(self, _args: TraceArgs) -> bool:
        return self.manager.reset_prefix_cache()

    def _take_events(self, _args: TraceArgs) -> Any:
        # Through JSON, so that tuples become lists as in the recording.
        return msgspec.json.decode(msgspec.json.encode(self.manager.take_events()))

    def _make_prefix_cache_stats(self, _args: TraceArgs) -> dict[str, Any]:
        # Hits of tiers below the GPU's, which no recording has.
        return asdict(self.manager.make_prefix_cache_stats()) | {"hits_by_source": {}}

    def _get_block_ids(self, args: TraceArgs) -> Sequence[Any]:
        return self._ids(self.manager.get_blocks(args.need("request_id", str)))

    def _get_num_common_prefix_blocks(self, args: TraceArgs) -> list[int]:
        return self.manager.get_num_common_prefix_blocks(args.need("request_id", str))


def _group(args: TraceArgs) -> KVCacheGroupSpec:
    kind = args.need("kind", str)
    size = args.need("block_size", int)
    spec: KVCacheSpec
    try:
        if kind == "full_attention":
            spec = FullAttentionSpec(size, num_kv_heads=1, head_size=1, dtype="float32")
        elif kind == "sliding_window":
            window = args.need("sliding_window", int)
            spec = SlidingWindowSpec(
                size, num_kv_heads=1, head_size=1, dtype="float32", sliding_window=window
            )
        else:
            raise BadTraceError(f"args.groups: kind {kind!r} is not simulated")
    except ValueError as error:
        raise BadTraceError(f"args.groups: {error}") from error
    return KVCacheGroupSpec(["layer"], spec, args.get("is_eagle_group", bool, default=False))
