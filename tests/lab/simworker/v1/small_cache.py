"""Managers and requests small enough to be followed by hand."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockRemoved, BlockStored, CacheEvent
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import (
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    maybe_convert_block_hash,
)
from warmpath.lab.simworker.v1.requests.request import Request, SamplingParams
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

SIZE = 4
"""Tokens a block, by default."""


def full(block_size: int = SIZE) -> FullAttentionSpec:
    return FullAttentionSpec(block_size, num_kv_heads=1, head_size=1, dtype="float32")


def window(tokens: int, block_size: int = SIZE) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size, num_kv_heads=1, head_size=1, dtype="float32", sliding_window=tokens
    )


def config(
    num_blocks: int, *specs: FullAttentionSpec | SlidingWindowSpec, retention: int | None = None
) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs or (full(),))]
    return KVCacheConfig(num_blocks, [], groups, prefix_cache_retention_interval=retention)


def manager(num_blocks: int, *specs: FullAttentionSpec | SlidingWindowSpec, **more: Any) -> KVCacheManager:  # fmt: skip
    retention = more.pop("retention", None)
    return KVCacheManager(
        config(num_blocks, *specs, retention=retention), **{"max_model_len": 1000} | more
    )


def request(
    name: str, tokens: Sequence[int] | None, hash_block_size: int = SIZE, **more: Any
) -> Request:
    params = more.pop("sampling_params", SamplingParams())
    hasher = get_request_block_hasher(hash_block_size, sha256_cbor)
    return Request(name, tokens, params, **{"block_hasher": hasher} | more)


def admit(one_manager: KVCacheManager, one: Request) -> int | None:
    """Give a request all its slots, as computed; return how many tokens were found, or None."""
    found, cached, _ = one_manager.get_computed_blocks(one)
    if one_manager.allocate_slots(one, one.num_tokens - cached, cached, found) is None:
        return None
    one.num_computed_tokens = one.num_tokens
    return cached


def free_ids(one_manager: KVCacheManager) -> list[int]:
    queue = one_manager.block_pool.free_block_queue
    return [block.block_id for block in queue.get_all_free_blocks()]


def table(one_manager: KVCacheManager, one: Request) -> tuple[list[int], ...]:
    return one_manager.get_block_ids(one.request_id)


class Announced:
    """How often each name was announced as cached, by group."""

    def __init__(self) -> None:
        self.count: Counter[tuple[object, int | None]] = Counter()

    def check(self, events: Sequence[CacheEvent], pool: BlockPool) -> None:
        """Hear events; what was announced must be what the pool has cached."""
        for event in events:
            if isinstance(event, BlockStored):
                self.count.update((digest, event.group_idx) for digest in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.count.subtract((digest, event.group_idx) for digest in event.block_hashes)
            else:
                self.count.clear()
        assert min(self.count.values(), default=0) >= 0
        assert +self.count == Counter(
            (maybe_convert_block_hash(get_block_hash(key)), get_group_id(key))
            for key, _ in pool.cached_block_hash_to_block.items()
        )
