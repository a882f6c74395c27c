"""vLLM v1: the KV cache manager and the unified scheduler, as of 0.32.

It exports the names under which vLLM's users and tests know the cache, its input and output, and the
scheduler.
"""

from warmpath.lab.simworker.v1.cache.block_hash_map import BlockHashToBlockMap
from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.caching_metrics import CachingMetrics, PrefixCacheStats
from warmpath.lab.simworker.v1.cache.free_queue import FreeKVCacheBlockQueue
from warmpath.lab.simworker.v1.cache.full_attention import FullAttentionManager
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock, KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
)
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.cache.sliding_window import SlidingWindowManager
from warmpath.lab.simworker.v1.hashing.algorithms import (
    get_hash_fn_by_name,
    sha256,
    sha256_cbor,
    xxhash,
    xxhash_cbor,
)
from warmpath.lab.simworker.v1.hashing.block_hash import (
    NONE_HASH,
    BlockHash,
    BlockHashWithGroupId,
    ExternalBlockHash,
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    hash_block_tokens,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
    none_hash,
)
from warmpath.lab.simworker.v1.hashing.block_hash_view import (
    BlockHashListWithBlockSize,
    resolve_block_hashes,
)
from warmpath.lab.simworker.v1.hashing.extra_keys import (
    LoRARequest,
    MultiModalFeatureSpec,
    PlaceholderRange,
    generate_block_hash_extra_keys,
    to_event_extra_keys,
)
from warmpath.lab.simworker.v1.memory.limits import (
    check_enough_kv_cache_memory,
    estimate_max_model_len,
    generate_scheduler_kv_cache_config,
    get_kv_cache_capacity,
    get_kv_cache_config_from_groups,
    get_kv_cache_configs,
    get_max_concurrency_for_kv_cache_config,
    get_num_blocks,
    max_memory_usage_bytes,
    may_override_num_blocks,
)
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.requests.sampling_params import PoolingParams, SamplingParams
from warmpath.lab.simworker.v1.scheduling.request_queue import (
    FCFSRequestQueue,
    PriorityRequestQueue,
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState, SchedulerConfig
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput
from warmpath.lab.simworker.v1.specs.group_layers import (
    create_kv_cache_group_specs,
    get_kv_cache_groups,
    is_kv_cache_spec_uniform,
    unify_hybrid_kv_cache_specs,
    unify_kv_cache_spec_page_size,
)
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheSpecKind,
    KVCacheTensor,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
    iter_layer_specs,
)

__all__ = [
    "MEDIUM_CPU",
    "MEDIUM_GPU",
    "NONE_HASH",
    "AllBlocksCleared",
    "AttentionSpec",
    "BlockHash",
    "BlockHashListWithBlockSize",
    "BlockHashToBlockMap",
    "BlockHashWithGroupId",
    "BlockPool",
    "BlockRemoved",
    "BlockStored",
    "CachingMetrics",
    "ExternalBlockHash",
    "FCFSRequestQueue",
    "FreeKVCacheBlockQueue",
    "FullAttentionManager",
    "FullAttentionSpec",
    "KVCacheBlock",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheManager",
    "KVCacheSpec",
    "KVCacheSpecKind",
    "KVCacheTensor",
    "LoRARequest",
    "MultiModalFeatureSpec",
    "PauseState",
    "PlaceholderRange",
    "PoolingParams",
    "PrefixCacheStats",
    "PriorityRequestQueue",
    "Request",
    "RequestQueue",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "SchedulingPolicy",
    "SlidingWindowManager",
    "SlidingWindowSpec",
    "UniformTypeKVCacheSpecs",
    "check_enough_kv_cache_memory",
    "create_kv_cache_group_specs",
    "create_request_queue",
    "estimate_max_model_len",
    "generate_block_hash_extra_keys",
    "generate_scheduler_kv_cache_config",
    "get_block_hash",
    "get_group_id",
    "get_hash_fn_by_name",
    "get_kv_cache_capacity",
    "get_kv_cache_config_from_groups",
    "get_kv_cache_configs",
    "get_kv_cache_groups",
    "get_kv_cache_spec_kind",
    "get_kv_cache_spec_sliding_window",
    "get_max_concurrency_for_kv_cache_config",
    "get_num_blocks",
    "get_request_block_hasher",
    "hash_block_tokens",
    "is_kv_cache_spec_uniform",
    "iter_layer_specs",
    "make_block_hash_with_group_id",
    "max_memory_usage_bytes",
    "may_override_num_blocks",
    "maybe_convert_block_hash",
    "none_hash",
    "resolve_block_hashes",
    "sha256",
    "sha256_cbor",
    "to_event_extra_keys",
    "unify_hybrid_kv_cache_specs",
    "unify_kv_cache_spec_page_size",
    "xxhash",
    "xxhash_cbor",
]
