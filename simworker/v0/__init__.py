"""vLLM v0: block manager, allocators, swap and the three-queue scheduler, as of 0.9.2.

It does not import the two array libraries' modules, `numpy_backend.NumpyBackend` and
`torch_backend.TorchBackend`; a `CacheEngine` takes one of them.
"""

from simworker.v0.blocks.block import Block, BlockAllocator, BlockId
from simworker.v0.blocks.block_manager import BlockManager
from simworker.v0.blocks.block_table import BlockTable
from simworker.v0.blocks.computed_blocks_tracker import ComputedBlocksTracker
from simworker.v0.blocks.copy_on_write import CopyOnWriteTracker
from simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from simworker.v0.blocks.evictor import Evictor, LinearEvictor, LRUEvictor
from simworker.v0.blocks.last_access_blocks_tracker import LastAccessBlocksTracker
from simworker.v0.blocks.naive_block import NaiveBlock, NaiveBlockAllocator
from simworker.v0.blocks.null_block import NullBlock
from simworker.v0.blocks.prefix_caching_block import PrefixCachingBlock
from simworker.v0.blocks.prefix_caching_block_allocator import PrefixCachingBlockAllocator
from simworker.v0.blocks.ref_counter import RefCounter
from simworker.v0.device import Device
from simworker.v0.engine import V0Engine
from simworker.v0.interfaces import AllocStatus
from simworker.v0.memory.array_backend import ArrayBackend
from simworker.v0.memory.block_content import BlockContent
from simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from simworker.v0.requests.lora import LoRAConfig, LoRARequest
from simworker.v0.requests.sampling_params import SamplingParams
from simworker.v0.requests.sequence import Logprob, Sequence, SequenceGroup, SequenceStatus
from simworker.v0.requests.sequence_data import SequenceData, SequenceStage
from simworker.v0.scheduling.partial_prefills import PartialPrefillMetadata
from simworker.v0.scheduling.scheduler import Scheduler
from simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig
from simworker.v0.scheduling.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerOutputs,
    SequenceGroupMetadata,
)
from simworker.v0.scheduling.scheduler_state import PreemptionMode
from simworker.v0.scheduling.scheduling_budget import SchedulingBudget
from simworker.v0.worker import Chunk, Worker

__all__ = [
    "AllocStatus",
    "ArrayBackend",
    "Block",
    "BlockAllocator",
    "BlockContent",
    "BlockId",
    "BlockManager",
    "BlockTable",
    "CacheConfig",
    "CacheEngine",
    "CacheShape",
    "Chunk",
    "ComputedBlocksTracker",
    "CopyOnWriteTracker",
    "CpuGpuBlockAllocator",
    "Device",
    "Evictor",
    "LRUEvictor",
    "LastAccessBlocksTracker",
    "LinearEvictor",
    "LoRAConfig",
    "LoRARequest",
    "Logprob",
    "NaiveBlock",
    "NaiveBlockAllocator",
    "NullBlock",
    "PartialPrefillMetadata",
    "PreemptionMode",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
    "RefCounter",
    "SamplingParams",
    "ScheduledSequenceGroup",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutputs",
    "SchedulingBudget",
    "Sequence",
    "SequenceData",
    "SequenceGroup",
    "SequenceGroupMetadata",
    "SequenceStage",
    "SequenceStatus",
    "V0Engine",
    "Worker",
]
