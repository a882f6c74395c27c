"""TensorRT-LLM's KV cache: two pools, a manager for each attention window, and its events."""

from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey, hash_block_key
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import (
    LRUEvictionPolicy,
    NoFreeBlocksError,
)
from warmpath.lab.simworker.trtllm.blocks.pools import BlockPools
from warmpath.lab.simworker.trtllm.blocks.retention import (
    KvCacheRetentionConfig,
    TokenRangeRetentionConfig,
)
from warmpath.lab.simworker.trtllm.cache.block_manager import BlockManager
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager, KvCacheStats
from warmpath.lab.simworker.trtllm.cache.window_block_manager import WindowBlockManager
from warmpath.lab.simworker.trtllm.capacity_scheduler import CapacityPolicy, CapacityScheduler
from warmpath.lab.simworker.trtllm.engine import TrtllmEngine
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
    serialise,
)
from warmpath.lab.simworker.trtllm.micro_batch_scheduler import MicroBatchScheduler
from warmpath.lab.simworker.trtllm.requests.llm_request import LlmRequest, MultimodalItem

__all__ = [
    "BlockKey",
    "BlockManager",
    "BlockPools",
    "CapacityPolicy",
    "CapacityScheduler",
    "KVCacheBlock",
    "KVCacheCreatedData",
    "KVCacheEvent",
    "KVCacheEventDiff",
    "KVCacheEventManager",
    "KVCacheManager",
    "KVCacheRemovedData",
    "KVCacheStoredBlockData",
    "KVCacheStoredData",
    "KVCacheUpdatedData",
    "KvCacheRetentionConfig",
    "KvCacheStats",
    "LRUEvictionPolicy",
    "LlmRequest",
    "MicroBatchScheduler",
    "MultimodalItem",
    "NoFreeBlocksError",
    "TokenRangeRetentionConfig",
    "TrtllmEngine",
    "WindowBlockManager",
    "hash_block_key",
    "serialise",
]
