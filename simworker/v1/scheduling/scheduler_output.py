"""What the scheduler decided for one step, and what a step gave the requests.

Source: `vllm/v1/core/sched/output.py` and `vllm/v1/engine/__init__.py` of 0.32. There a worker in
another process is told, so requests are described; here they are the requests themselves.
"""

from dataclasses import dataclass, field

from simworker.latency import StepWork
from simworker.v1.cache.kv_cache_blocks import KVCacheBlocks
from simworker.v1.offload.job import OffloadingMetadata
from simworker.v1.requests.request import Request


@dataclass(slots=True)
class SchedulerOutput:
    """One step: who computes how many tokens, and into which blocks."""

    scheduled_new_reqs: list[Request] = field(default_factory=list)
    """Admitted for the first time."""
    scheduled_resumed_reqs: list[Request] = field(default_factory=list)
    """Admitted again after a preemption."""
    scheduled_running_reqs: list[Request] = field(default_factory=list)
    """Running before this step."""
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    """New tokens by request id, in the order in which they were scheduled."""
    req_to_new_blocks: dict[str, KVCacheBlocks] = field(default_factory=dict)
    """By request id: the blocks newly allocated; of admitted requests all blocks, hits included.
    Requests that got none in this step may be missing."""
    preempted_req_ids: set[str] = field(default_factory=set)
    """Preempted since the step before."""
    finished_req_ids: set[str] = field(default_factory=set)
    """Finished since the step before."""
    kv_connector_metadata: OffloadingMetadata | None = None
    """What the step transfers to and from the offload tier."""
    work: StepWork = field(default_factory=StepWork)
    """What it costs."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True)
class RequestOutput:
    """What a request got from a step."""

    request: Request
    new_token_ids: list[int]
    finished: bool
