"""TensorRT-LLM's KV cache: two pools, a manager for each attention window, and its events."""

from simworker.trtllm.block import KVCacheBlock
from simworker.trtllm.block_hash import hash_block_key
from simworker.trtllm.block_key import BlockKey
from simworker.trtllm.block_manager import BlockManager
from simworker.trtllm.capacity_scheduler import CapacityPolicy, CapacityScheduler
from simworker.trtllm.engine import TrtllmEngine
from simworker.trtllm.event_manager import KVCacheEventManager
from simworker.trtllm.eviction_policy import LRUEvictionPolicy, NoFreeBlocksError
from simworker.trtllm.kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from simworker.trtllm.kv_cache_manager import KVCacheManager, KvCacheStats
from simworker.trtllm.llm_request import LlmRequest, MultimodalItem
from simworker.trtllm.micro_batch_scheduler import MicroBatchScheduler
from simworker.trtllm.pools import BlockPools
from simworker.trtllm.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from simworker.trtllm.serialise import serialise
from simworker.trtllm.window_block_manager import WindowBlockManager

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
