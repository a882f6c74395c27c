"""Puts one worker's engine together from its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.sampler import next_token
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.engine import Sample, V1Engine
from warmpath.lab.simworker.v1.hashing.algorithms import get_hash_fn_by_name
from warmpath.lab.simworker.v1.hashing.block_hash import (
    DEFAULT_NONE_HASH_SEED,
    get_request_block_hasher,
    none_hash,
)
from warmpath.lab.simworker.v1.memory.limits import estimate_max_model_len
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.offload.pool import CPUOffloadingManager
from warmpath.lab.simworker.v1.offload.transfer import PCIE_4_X16, TransferWorker
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.requests.trace_request import TraceRequest
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MemoryLimits,
    ModelLength,
    SlidingWindowSpec,
)


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """The CPU tier of one worker."""

    num_chunks: int
    """Chunks of one block each."""
    bytes_per_block: int
    """Bytes of one block in all layers of a rank, which a copy moves."""
    bandwidth: float = PCIE_4_X16
    """Bytes a second, each way."""
    offload_prompt_only: bool = True
    self_describing_kv_events: bool = False


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one block table: all of one kind."""

    block_size: int
    window: int = 0
    """Tokens that the layers keep; 0 for full attention, which keeps all."""


def kv_cache_config(num_blocks: int, groups: Sequence[KVGroup]) -> KVCacheConfig:
    """Return a cache whose groups share `num_blocks` blocks, the null block counted."""
    # Blocks of all groups take the same memory, as vLLM has it.
    whole = lcm(*(one.block_size for one in groups))
    specs = [
        KVCacheGroupSpec([f"layers.{at}"], _spec(one, whole // one.block_size))
        for at, one in enumerate(groups)
    ]
    return KVCacheConfig(num_blocks, [], specs)


def _spec(group: KVGroup, head_size: int) -> AttentionSpec:
    if group.window:
        return SlidingWindowSpec(
            block_size=group.block_size, num_kv_heads=1, head_size=head_size, dtype="float16",
            sliding_window=group.window,
        )  # fmt: skip
    return FullAttentionSpec(
        block_size=group.block_size, num_kv_heads=1, head_size=head_size, dtype="float16"
    )


def longest_request(cache: KVCacheConfig, most: int, *, in_flight: int) -> int:
    """Return the tokens of the longest request, at most `most`, for which the blocks suffice.

    `in_flight` is the most tokens of a step. vLLM does not start with a longer `max_model_len`.
    """
    specs = {name: one.kv_cache_spec for one in cache.kv_cache_groups for name in one.layer_names}
    pages = (cache.num_blocks - 1) * next(iter(specs.values())).page_size_bytes
    return estimate_max_model_len(MemoryLimits(ModelLength(most), in_flight), specs, pages)


class MadeUpTokens:
    """Draws token ids below `vocab_size`, as a model at temperature 0. Raises ValueError below 1."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size: {vocab_size}, at least 1")
        self._vocab_size = vocab_size

    def __call__(self, request: Request, count: int) -> list[int]:
        """Return the next `count` tokens; zeros for a request without token ids.

        They depend on the last full block's hash, which covers all tokens up to its end, on the last
        token and on its position. No block may become full before the last of the `count` tokens.
        """
        if isinstance(request, TraceRequest):
            return [0] * count
        seed = request.block_hashes[-1] if request.block_hashes else b""
        token = request.all_token_ids[-1]
        place = request.num_tokens
        tokens = []
        for position in range(place, place + count):
            token = next_token(seed, token, position, self._vocab_size)
            tokens.append(token)
        return tokens


def build_engine(
    cache: KVCacheConfig,
    scheduler: SchedulerConfig,
    latency: LatencyModel | None = None,
    *,
    vocab_size: int = 32_000,
    sample: Sample | None = None,
    hash_algorithm: str = "sha256",
    hash_seed: str = DEFAULT_NONE_HASH_SEED,
    enable_caching: bool = True,
    enable_kv_cache_events: bool = True,
    use_int_block_hashes: bool = True,
    watermark: float = 0.0,
    use_eagle: bool = False,
    offload: OffloadConfig | None = None,
) -> V1Engine:
    """Return an engine without requests.

    `latency` is that of a 70B model on four H100 if not given, `sample` makes up tokens below
    `vocab_size`. `hash_algorithm` and `hash_seed` are vLLM's `--prefix-caching-hash-algo` and
    PYTHONHASHSEED, `watermark` the share of the blocks kept free when a request is admitted beside
    others. `use_eagle`: a drafter's layers read the cache, too. Raises ValueError naming the field
    for a setting that vLLM refuses.
    """
    manager = KVCacheManager(
        cache,
        scheduler.max_model_len,
        max_in_flight_tokens=scheduler.max_num_batched_tokens,
        use_eagle=use_eagle,
        enable_caching=enable_caching,
        enable_kv_cache_events=enable_kv_cache_events,
        watermark=watermark,
        use_int_block_hashes=use_int_block_hashes,
    )
    hash_block_size = manager.block_pool.hash_block_size
    connector, transfers = None, None
    if offload is not None:
        connector = OffloadingConnector(
            cache.kv_cache_groups,
            CPUOffloadingManager(offload.num_chunks),
            hash_block_size=hash_block_size,
            offload_prompt_only=offload.offload_prompt_only,
            self_describing_kv_events=offload.self_describing_kv_events,
            use_int_block_hashes=use_int_block_hashes,
        )
        transfers = TransferWorker(offload.bytes_per_block, offload.bandwidth)
    hash_function = get_hash_fn_by_name(hash_algorithm)
    return V1Engine(
        Scheduler(manager, scheduler, connector=connector),
        latency or LatencyModel(),
        block_hasher=get_request_block_hasher(
            hash_block_size, hash_function, none_hash(hash_function, hash_seed)
        ),
        sample=sample or MadeUpTokens(vocab_size),
        transfers=transfers,
    )
