"""Schedules one step: running requests first, then waiting ones, until the budget is spent.

Each request gets its tokens that are not computed yet, one for a decoding request, the rest of the
prompt for any other, cut to the budget that is left. The KV cache manager allocates their slots. If it
has too few:

- a running request takes them from another: the last that was admitted, or, with the policy `priority`,
  the least important one, even if this step has scheduled that already (its tokens go back into the
  budget). The preempted request may be the request itself; then no further running request is scheduled.
- a waiting request goes on waiting, and so do all behind it: it preempts no other.

After a preemption no waiting request is admitted in the same step: it would take the blocks just freed.

Source: `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` of 0.32.
"""

from enum import Enum, auto
from math import gcd

from warmpath.lab.simworker.v1.cache.coordinator import KVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.cache.single_type_manager import FullAttentionManager
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.scheduling.request_queue import (
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState, SchedulerConfig
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput


class SchedulerState:
    """The state of a scheduler, which a step reads and changes."""

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        config: SchedulerConfig,
        *,
        connector: OffloadingConnector | None = None,
    ) -> None:
        self.kv_cache_manager = kv_cache_manager
        self.config = config
        self.connector = connector
        self.policy = SchedulingPolicy(config.policy)
        self.requests: dict[str, Request] = {}
        """Every request that is not finished, or whose load is under way, by its id."""
        self.running: list[Request] = []
        self.waiting = create_request_queue(self.policy)
        self.kv_holding_waiting = create_request_queue(self.policy)
        """Waiting requests that hold blocks. They are scheduled first: a request whose allocation fails
        ends the scan, and could wait for ever for blocks that one behind it holds."""
        self.deferred_waiting: set[Request] = set()
        """Waiting requests, of either queue, that were passed over for another reason than blocks."""
        self.inflight_prefills: set[Request] = set()
        """Requests whose prompt is partly computed or being loaded. The blocks that they still need stay
        free when a load is admitted."""
        self.finished_recving_kv_req_ids: set[str] = set()
        """Requests whose load has ended, and which are not scheduled again yet."""
        self.finished_req_ids: set[str] = set()
        """Requests finished since the last step was scheduled."""
        self.preempted_req_ids: set[str] = set()
        """Requests preempted since the last step was scheduled."""
        self._in_flight: dict[str, int] = {}
        """Request id -> tokens in the step that was scheduled and has not ended."""
        self.num_preemptions = 0
        self.pause_state = PauseState.UNPAUSED
        self.steady_block_size = _steady_block_size(kv_cache_manager.coordinator)
        """A request takes or fills blocks only at multiples of this number of tokens; 1: anywhere."""

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(self.kv_holding_waiting)

    def preempt_request(self, request: Request) -> None:
        """Free a request's blocks and let it wait. The caller has taken it out of `running`."""
        self.kv_cache_manager.free(request)
        self.inflight_prefills.discard(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)
        self.preempted_req_ids.add(request.request_id)


def _steady_block_size(coordinator: KVCacheCoordinator) -> int:
    """Return `steady_block_size`: 1 with sliding windows, which free blocks at any number of tokens."""
    managers = coordinator.single_type_managers
    if coordinator.num_reprefillable_tokens or not all(
        isinstance(manager, FullAttentionManager) for manager in managers
    ):
        return 1
    return gcd(coordinator.hash_block_size, *(manager.block_size for manager in managers))


class _Verdict(Enum):
    """The decision on a waiting request."""

    ADMITTED = auto()
    PASSED_OVER = auto()
    """The request cannot start for a reason of its own; requests behind it may."""
    STOP = auto()
    """The request lacks blocks, or budget for the whole of it; all behind it wait too."""


class ScheduleStep:
    """Schedules one step into `output`."""

    def __init__(self, scheduler: SchedulerState, output: SchedulerOutput) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._config = scheduler.config
        self._output = output
        self._budget = scheduler.config.max_num_batched_tokens
        self.has_preempted = False
        """Whether a request gave its blocks to another in this step."""

    def schedule_running(self) -> None:
        """Schedule every running request, in order, while the budget lasts."""
        output = self._output
        tokens, new_blocks = output.num_scheduled_tokens, output.req_to_new_blocks
        last = self._config.max_model_len - 1
        allocate_slots = self._manager.allocate_slots
        block_size = self._scheduler.steady_block_size
        self._index = 0
        while self._index < len(self._scheduler.running) and self._budget > 0:
            request = self._scheduler.running[self._index]
            computed = request.num_computed_tokens
            new = request.num_tokens - computed
            if new == 1 and 0 < computed % block_size < block_size - 1:
                # It has a slot in a block that does not become full, and needs no other.
                output.scheduled_running_reqs.append(request)
                tokens[request.request_id] = 1
                self._budget -= 1
                self._index += 1
                continue
            new = min(new, self._budget, last - computed)
            if new <= 0:
                self._index += 1
                continue
            while (blocks := allocate_slots(request, new)) is None and self._preempt_for(request):
                pass
            if blocks is None:
                break
            output.scheduled_running_reqs.append(request)
            tokens[request.request_id] = new
            new_blocks[request.request_id] = blocks
            self._budget -= new
            self._index += 1

    def _preempt_for(self, request: Request) -> bool:
        """Preempt a request so that this one gets blocks; return False if it preempted this one."""
        scheduler = self._scheduler
        running = scheduler.running
        if scheduler.policy is SchedulingPolicy.PRIORITY:
            victim = max(running, key=lambda one: (one.priority, one.arrival_time))
            place = running.index(victim)
            del running[place]
            if place < self._index:
                self._index -= 1
            self._take_back(victim)
        else:
            victim = running.pop()
        scheduler.preempt_request(victim)
        self.has_preempted = True
        return victim is not request

    def _take_back(self, victim: Request) -> None:
        """Undo this step's decision for a request."""
        output = self._output
        tokens = output.num_scheduled_tokens.pop(victim.request_id, 0)
        if tokens:
            output.scheduled_running_reqs.remove(victim)
            output.req_to_new_blocks.pop(victim.request_id, None)
            self._budget += tokens

    def schedule_waiting(self) -> None:
        """Admit waiting requests, in order, while there are tokens, places and blocks for them."""
        scheduler, config = self._scheduler, self._config
        skipped: dict[RequestQueue, list[Request]] = {}
        while self._budget > 0 and len(scheduler.running) < config.max_num_seqs:
            queue = scheduler.kv_holding_waiting
            if not queue and scheduler.pause_state is PauseState.UNPAUSED:
                queue = scheduler.waiting
            if not queue:
                break
            verdict = self._admit(queue.peek_request())
            if verdict is _Verdict.STOP:
                break
            request = queue.pop_request()
            if verdict is _Verdict.ADMITTED:
                scheduler.deferred_waiting.discard(request)
                continue
            scheduler.deferred_waiting.add(request)
            holding = _holds_kv_blocks(request)
            kept = scheduler.kv_holding_waiting if holding else scheduler.waiting
            skipped.setdefault(kept, []).append(request)
        # Requests that were passed over keep their places.
        for queue, requests in skipped.items():
            queue.prepend_requests(reversed(requests))

    def _admit(self, request: Request) -> _Verdict:
        """Let a waiting request run, if it is ready and there are slots for it.

        One whose prefix is loaded from elsewhere gets its slots now, waits, and is PASSED_OVER.
        """
        scheduler, config = self._scheduler, self._config
        if not self._is_ready(request):
            return _Verdict.PASSED_OVER
        hits, local, external, load = None, 0, 0, False
        computed = request.num_computed_tokens
        looked_up = not computed
        if looked_up:
            found_here = self._manager.get_computed_blocks(request)
            hits, local, request.shared_prefix_boundary = found_here
            if scheduler.connector is not None:
                found, load = scheduler.connector.get_num_new_matched_tokens(request, local)
                if found is None:
                    return _Verdict.PASSED_OVER
                external = found
            computed = local + external
            if not request.num_preemptions:
                request.num_cached_tokens = computed
        # While its prefix is being loaded, a request computes no tokens.
        new = 0 if load else request.num_tokens - computed
        if new > self._budget:
            if not config.enable_chunked_prefill:
                return _Verdict.STOP
            new = self._budget
        blocks = self._manager.allocate_slots(
            request,
            new,
            num_new_computed_tokens=local,
            new_computed_blocks=hits,
            num_external_computed_tokens=external,
            delay_cache_blocks=load,
            full_sequence_must_fit=True,
            reserved_blocks=self._reserved_blocks() if load else 0,
            has_scheduled_reqs=bool(scheduler.running),
        )
        if blocks is None:
            return _Verdict.STOP
        if looked_up:
            self._manager.record_prefix_cache_stats(request, local)
        blocks = self._manager.get_blocks(request.request_id)
        if scheduler.connector is not None:
            scheduler.connector.update_state_after_alloc(request, blocks, external)
        request.num_computed_tokens = computed
        if load:
            request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
            scheduler.inflight_prefills.add(request)
            return _Verdict.PASSED_OVER
        self._take_in(request, new)
        self._output.req_to_new_blocks[request.request_id] = blocks
        return _Verdict.ADMITTED

    def _is_ready(self, request: Request) -> bool:
        """Return whether a request waits only for its turn; if its load has ended, cache the blocks."""
        scheduler = self._scheduler
        if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in scheduler.finished_recving_kv_req_ids:
            return False
        scheduler.finished_recving_kv_req_ids.remove(request.request_id)
        self._manager.cache_blocks(request, request.num_computed_tokens)
        # The last token is computed in any case: the next one is sampled from it.
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        resumed = request.num_preemptions > 0
        request.status = RequestStatus.PREEMPTED if resumed else RequestStatus.WAITING
        return True

    def _reserved_blocks(self) -> int:
        """Return the number of further blocks that all prompts under way need.

        A request that loads holds its blocks without progress, and is not preempted: it is admitted only
        if these blocks are left.
        """
        manager = self._manager
        return sum(
            manager.coordinator.get_num_blocks_to_allocate(
                request.request_id,
                min(request.num_tokens, self._config.max_model_len),
                tuple(manager.empty_kv_cache_blocks.blocks),
                request.num_computed_tokens,
                apply_admission_cap=True,
            )
            for request in self._scheduler.inflight_prefills
        )

    def _take_in(self, request: Request, new: int) -> None:
        scheduler, output = self._scheduler, self._output
        scheduler.running.append(request)
        resumed = request.status is RequestStatus.PREEMPTED
        (output.scheduled_resumed_reqs if resumed else output.scheduled_new_reqs).append(request)
        request.status = RequestStatus.RUNNING
        if request.num_computed_tokens + new < request.num_tokens:
            scheduler.inflight_prefills.add(request)
        output.num_scheduled_tokens[request.request_id] = new
        self._budget -= new


def _holds_kv_blocks(request: Request) -> bool:
    """Whether a waiting request has blocks: it loads, or has loaded, its prefix."""
    loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
    return loading or request.num_computed_tokens > 0
