"""vLLM v0: block manager, allocators, swap and the three-queue scheduler, as of 0.9.2.

It does not import the two array libraries' modules, `numpy_backend.NumpyBackend` and
`torch_backend.TorchBackend`; a `CacheEngine` takes one of them.
"""

from warmpath.lab.simworker.v0.blocks.block import Block, BlockAllocator, BlockId
from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.blocks.block_table import BlockTable
from warmpath.lab.simworker.v0.blocks.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from warmpath.lab.simworker.v0.blocks.evictor import Evictor, LinearEvictor, LRUEvictor
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlock, NaiveBlockAllocator, NullBlock
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import PrefixCachingBlock
from warmpath.lab.simworker.v0.blocks.prefix_caching_block_allocator import (
    PrefixCachingBlockAllocator,
)
from warmpath.lab.simworker.v0.blocks.sharing import CopyOnWriteTracker, RefCounter
from warmpath.lab.simworker.v0.blocks.trackers import ComputedBlocksTracker, LastAccessBlocksTracker
from warmpath.lab.simworker.v0.device import AllocStatus, Device
from warmpath.lab.simworker.v0.engine import V0Engine
from warmpath.lab.simworker.v0.memory.array_backend import ArrayBackend
from warmpath.lab.simworker.v0.memory.block_content import BlockContent
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.requests.sampling_params import (
    LoRAConfig,
    LoRARequest,
    SamplingParams,
)
from warmpath.lab.simworker.v0.requests.sequence import (
    Logprob,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from warmpath.lab.simworker.v0.requests.sequence_data import SequenceData, SequenceStage
from warmpath.lab.simworker.v0.scheduling.new_tokens import PartialPrefillMetadata
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerOutputs,
    SequenceGroupMetadata,
)
from warmpath.lab.simworker.v0.scheduling.scheduler_state import PreemptionMode
from warmpath.lab.simworker.v0.scheduling.scheduling_budget import SchedulingBudget
from warmpath.lab.simworker.v0.worker import Chunk, Worker

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
