"""The scheduler: which requests compute how many tokens in the next step.

Source: `vllm/v1/core/sched/scheduler.py` of 0.32, first come first served, chunked prefill
(`shared/engine-events.md`, 4.6).
"""

from collections import deque
from dataclasses import dataclass, field

from simworker.latency import StepWork
from simworker.v1.kv_cache_manager import KVCacheManager
from simworker.v1.request import Request


@dataclass(slots=True)
class Step:
    """What one step computes."""

    tokens: dict[str, int] = field(default_factory=dict)
    """New tokens of each scheduled request."""
    work: StepWork = field(default_factory=StepWork)


class Scheduler:
    """Running requests first, then waiting ones, within a budget of tokens and sequences."""

    def __init__(
        self, manager: KVCacheManager, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.manager = manager
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request, wherever it is; its blocks stay cached."""
        if request in self.running:
            self.running.remove(request)
            self.manager.free(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def schedule(self) -> Step:
        """Decide the next step and give its requests their blocks."""
        step = Step()
        budget, preempted = self._schedule_running(step, self._budget)
        if not preempted:
            self._schedule_waiting(step, budget)
        return step

    def _schedule_running(self, step: Step, budget: int) -> tuple[int, bool]:
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            new = min(request.num_tokens - request.num_computed_tokens, budget)
            while self.manager.allocate_slots(request, new) is None:
                # The newest gives way; it computes everything anew, or finds it cached.
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    return budget, True
            self._take(request, new, step)
            budget -= new
            position += 1
        return budget, preempted

    def _preempt(self, victim: Request) -> None:
        self.manager.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(victim)

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            request = self.waiting[0]
            hits, cached = self.manager.get_computed_blocks(request)
            new = min(request.num_tokens - cached, budget)
            allocated = self.manager.allocate_slots(
                request, new, cached, hits, full_sequence_must_fit=True
            )
            if allocated is None:
                return
            self.waiting.popleft()
            self.running.append(request)
            request.num_computed_tokens = cached
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = cached
                self.manager.stats.queries += request.num_tokens
                self.manager.stats.hits += cached
            self._take(request, new, step)
            budget -= new

    def _take(self, request: Request, new: int, step: Step) -> None:
        step.tokens[request.request_id] = new
        before = request.num_computed_tokens
        if before < request.num_prompt_tokens:
            step.work.prefills.append((new, before))
        else:
            step.work.decoding += 1
            step.work.decoding_context += before
        request.num_computed_tokens = before + new

    def finish(self, request: Request) -> None:
        """Take a finished request's blocks back; they stay cached."""
        self.running.remove(request)
        self.manager.free(request)
