"""TensorRT-LLM's KV cache: two pools, a manager for each attention window, and its events."""

from simworker.trtllm.blocks.block import KVCacheBlock
from simworker.trtllm.blocks.block_hash import hash_block_key
from simworker.trtllm.blocks.block_key import BlockKey
from simworker.trtllm.blocks.eviction_policy import LRUEvictionPolicy, NoFreeBlocksError
from simworker.trtllm.blocks.pools import BlockPools
from simworker.trtllm.blocks.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from simworker.trtllm.cache.block_manager import BlockManager
from simworker.trtllm.cache.kv_cache_manager import KVCacheManager, KvCacheStats
from simworker.trtllm.cache.window_block_manager import WindowBlockManager
from simworker.trtllm.capacity_scheduler import CapacityPolicy, CapacityScheduler
from simworker.trtllm.engine import TrtllmEngine
from simworker.trtllm.events.event_manager import KVCacheEventManager
from simworker.trtllm.events.kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from simworker.trtllm.events.serialise import serialise
from simworker.trtllm.micro_batch_scheduler import MicroBatchScheduler
from simworker.trtllm.requests.llm_request import LlmRequest, MultimodalItem

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
