"""The scheduler's decision for one step, and the step's output for each request.

Source: `vllm/v1/core/sched/output.py` and `vllm/v1/engine/__init__.py` of 0.32. vLLM describes requests,
as it sends the decision to a worker in another process; here the decision holds the requests themselves.
"""

from dataclasses import dataclass, field

from warmpath.lab.simworker.latency import StepWork
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlocks
from warmpath.lab.simworker.v1.offload.transfer import OffloadingMetadata
from warmpath.lab.simworker.v1.requests.request import Request


@dataclass(slots=True)
class SchedulerOutput:
    """One step: each request's number of tokens to compute, and its new blocks."""

    scheduled_new_reqs: list[Request] = field(default_factory=list)
    """Requests admitted for the first time."""
    scheduled_resumed_reqs: list[Request] = field(default_factory=list)
    """Requests admitted again after a preemption."""
    scheduled_running_reqs: list[Request] = field(default_factory=list)
    """Requests that were running before this step already."""
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    """Request id -> new tokens, in the order in which they were scheduled."""
    req_to_new_blocks: dict[str, KVCacheBlocks] = field(default_factory=dict)
    """Request id -> newly allocated blocks; all blocks, hits included, of an admitted request. Requests
    without new blocks may be missing."""
    preempted_req_ids: set[str] = field(default_factory=set)
    """Requests preempted since the step before."""
    finished_req_ids: set[str] = field(default_factory=set)
    """Requests finished since the step before."""
    kv_connector_metadata: OffloadingMetadata | None = None
    """The step's transfers to and from the offload tier; None without such a tier."""
    work: StepWork = field(default_factory=StepWork)
    """The step's work, which decides how long it takes."""


@dataclass(slots=True)
class RequestOutput:
    """A request's output of a step."""

    request: Request
    new_token_ids: list[int]
    finished: bool
