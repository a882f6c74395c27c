"""vLLM v1's engine: the scheduler's steps; each takes its modelled seconds.

    submit, abort ──► Scheduler ──► KVCacheManager (and the offload tier)
    begin_step    ──► schedule, and return how long that takes
    end_step      ──► sample tokens, hand them out, collect the events

While all requests decode and no block fills up, steps are alike, and `begin_step` takes several as one
if the caller permits it. `cut_step` ends them early when a request comes or is aborted in between.
Within such steps no block is taken or freed, so the outcome is that of single steps.
"""

from collections.abc import Callable
from itertools import count

from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Generation,
    Load,
    RequestRefusedError,
)
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.offload.transfer import TransferWorker
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus, SamplingParams
from warmpath.lab.simworker.v1.requests.trace_request import TraceRequest
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput

Sample = Callable[[Request, int], list[int]]
"""Returns a request's next tokens, given their number."""


class Leap:
    """Equal steps of one scheduler, taken as one.

    While all running requests decode, one step is like the next: every request computes one token, into
    a block that it has and that does not become full; no request ends before the last step; and waiting
    requests go on waiting for the same reason, since no block is taken or freed. The scheduler then need
    not schedule each step; it only counts their tokens.

    vLLM has no leaps: they speed up simulations on a virtual clock, where most steps are equal.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._block_size = 1 if scheduler.connector else scheduler.steady_block_size

    def steps_alike(self, output: SchedulerOutput) -> int:
        """Return the number of steps, that of `output` included, that would be scheduled just like it.

        Call it before the step's tokens are sampled.
        """
        scheduler, size = self._scheduler, self._block_size
        if (
            size == 1
            or output.work.prefills
            or output.preempted_req_ids
            or not output.num_scheduled_tokens
            or len(output.num_scheduled_tokens) != len(scheduler.running)
        ):
            return 1
        most = size
        for request in scheduler.running:
            filled = request.num_computed_tokens % size
            most = min(most, size - filled if filled else 1, scheduler.tokens_left(request))
            if most <= 1:
                return 1
        return most

    def repeat(self, output: SchedulerOutput, times: int) -> None:
        """Count the tokens of `times` further steps like that of `output` as computed."""
        requests = self._scheduler.requests
        for request_id in output.num_scheduled_tokens:
            request = requests.get(request_id)
            if request is not None and request.status is RequestStatus.RUNNING:
                request.num_computed_tokens += times


class V1Engine:
    """The unified scheduler over one `KVCacheManager`.

    `block_hasher` hashes requests with tokens, in blocks of the manager's hash block size. `transfers`
    times the copies of the scheduler's connector; the engine has both or neither.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        latency: LatencyModel,
        *,
        block_hasher: BlockHasher,
        sample: Sample,
        transfers: TransferWorker | None = None,
    ) -> None:
        if (transfers is None) != (scheduler.connector is None):
            raise ValueError("transfers: are needed with a connector, and only with one")
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.latency = latency
        self._block_hasher = block_hasher
        self._sample = sample
        self._transfers = transfers
        self._open: dict[str, Generation] = {}
        self._arrivals = count()
        self._lora_ids: dict[str, int] = {}
        self._leap = Leap(scheduler)
        self._output = SchedulerOutput()
        self._steps = 1
        """Number of equal steps that the current step replaces."""
        self._seconds = 0.0
        """Seconds of the step begun."""
        self._now = 0.0
        """Seconds of all steps; no time passes while the engine is idle."""
        self.prefill_seconds = 0.0
        """Seconds of all steps with prefill, which are never taken as one."""
        self._queries = 0
        self._hits = 0

    @property
    def work(self) -> StepWork:
        """The work of the step begun last; that of its first step if it replaces several."""
        return self._output.work

    @property
    def busy(self) -> bool:
        if self._transfers is not None:
            return self.scheduler.has_requests()
        return self.scheduler.has_unfinished_requests()

    def submit(self, generation: Generation) -> None:
        self._check(generation)
        request = self._request(generation)
        self.scheduler.add_request(request)
        self._open[generation.request_id] = generation

    def _check(self, generation: Generation) -> None:
        length = generation.num_prompt_tokens + generation.max_tokens
        if not generation.num_prompt_tokens:
            raise RequestRefusedError("the prompt is empty")
        if generation.max_tokens < 1:
            raise RequestRefusedError(f"max_tokens is {generation.max_tokens}, less than 1")
        longest = self.scheduler.config.max_model_len
        if length > longest:
            raise RequestRefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens} are more than max_model_len {longest}"
            )
        needed = self.manager.coordinator.get_num_blocks_to_allocate(
            "",
            length,
            tuple(self.manager.empty_kv_cache_blocks.blocks),
            0,
            apply_admission_cap=True,
        )
        usable = self.manager.block_pool.num_gpu_blocks - 1
        if needed > usable:
            raise RequestRefusedError(f"{length} tokens do not fit into {usable} blocks")
        if generation.request_id in self.scheduler.requests:
            raise RequestRefusedError(f"request id {generation.request_id!r} is in use")

    def _request(self, generation: Generation) -> Request:
        arrival = float(next(self._arrivals))
        if generation.prompt_hashes is not None:
            return TraceRequest(
                generation.request_id,
                generation.num_prompt_tokens,
                generation.prompt_hashes,
                self.manager.block_pool.hash_block_size,
                generation.max_tokens,
                answer_hashes=generation.answer_hashes,
                arrival_time=arrival,
                priority=generation.priority,
            )
        lora = None
        if generation.lora_name:
            name = generation.lora_name
            number = self._lora_ids.setdefault(name, len(self._lora_ids) + 1)
            lora = LoRARequest(name, number, generation.lora_path)
        return Request(
            generation.request_id,
            generation.prompt,
            SamplingParams(
                max_tokens=generation.max_tokens,
                skip_reading_prefix_cache=generation.skip_reading_prefix_cache,
                extra_args={"kv_cache_report_mode": generation.kv_cache_report_mode},
            ),
            arrival_time=arrival,
            lora_request=lora,
            cache_salt=generation.cache_salt or None,
            priority=generation.priority,
            block_hasher=self._block_hasher,
            session_id=generation.session_id or None,
        )

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are ignored. The blocks that it computed stay cached.

        Of steps taken as one, all except the last have ended (`cut_step`): the request gets their
        tokens.
        """
        generation = self._open.pop(request_id, None)
        if generation is None:
            return
        request = self.scheduler.requests[request_id]
        if self._steps > 1 and request_id in self._output.num_scheduled_tokens:
            tokens = self._sample(request, self._steps - 1)
            generation.num_output_tokens += len(tokens)
            generation.on_tokens(tokens, False)
        self.scheduler.finish_requests(request_id)

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step; return its modelled seconds.

        It counts as several steps if these would be alike; the last of them begins within `horizon`
        seconds.
        """
        self._output = output = self.scheduler.schedule()
        self._steps = 1
        seconds = self.latency.step(output.work) if output.num_scheduled_tokens else 0.0
        if self._transfers is not None and output.kv_connector_metadata is not None:
            seconds += self._transfers.begin_step(output.kv_connector_metadata, self._now)
            end = self._transfers.next_end()
            if not output.num_scheduled_tokens and end is not None:
                # All requests wait for loads, or only copies are under way.
                seconds = max(seconds, end - self._now)
        self._seconds = seconds
        if output.work.prefills:
            self.prefill_seconds += seconds
        # Events go out when their step ends, so a step with events is taken alone.
        if horizon > seconds and not self.manager.block_pool.kv_event_queue:
            self._steps = self._leap.steps_alike(output)
            return self.cut_step(horizon)
        return seconds

    def cut_step(self, elapsed: float) -> float:
        """Drop all steps begun after the first that ends at `elapsed` seconds or later.

        Call it before a request is submitted or aborted within them. Returns the seconds from the
        first step's beginning to the end of the last that is left.
        """
        if self._steps > 1:
            work = self._output.work
            self._steps = self.latency.decode_steps_until(work, elapsed, self._steps)
            self._seconds = self.latency.decode_steps(work, self._steps)
        return self._seconds

    def end_step(self) -> list[CacheEvent]:
        output, steps = self._output, self._steps
        scheduler = self.scheduler
        self._now += self._seconds
        if steps > 1:
            self._leap.repeat(output, steps - 1)
            self._steps = 1
        sampled = {}
        for request_id in output.num_scheduled_tokens:
            request = scheduler.requests.get(request_id)
            if request is not None and request.num_computed_tokens >= request.num_tokens:
                sampled[request_id] = self._sample(request, steps)
        for request in output.scheduled_new_reqs:
            generation = self._open.get(request.request_id)
            if generation is not None:
                generation.num_cached_tokens = request.num_cached_tokens
        outputs = scheduler.update_from_output(output, sampled)
        if self._transfers is not None:
            scheduler.update_connector_output(self._transfers.get_finished(self._now))
        for one in outputs:
            request = one.request
            generation = self._open.get(request.request_id)
            if generation is None:
                continue
            generation.num_output_tokens = request.num_output_tokens
            generation.num_preemptions = request.num_preemptions
            if one.finished:
                del self._open[request.request_id]
            generation.on_tokens(one.new_token_ids, one.finished)
        return scheduler.take_events()

    def load(self) -> Load:
        stats = self.manager.make_prefix_cache_stats()
        self._queries += stats.queries
        self._hits += stats.hits
        running, waiting = self.scheduler.get_request_counts()
        return Load(
            running=running,
            waiting=waiting,
            kv_cache_usage=self.manager.usage,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            preemptions=self.scheduler.num_preemptions,
        )

    def reset_prefix_cache(
        self, *, reset_running_requests: bool = False, reset_external: bool = False
    ) -> bool:
        """Forget all cached content; return False, and change nothing, while requests hold blocks.

        The options are those of vLLM's `POST /reset_prefix_cache` (`Scheduler.reset_prefix_cache`).
        """
        return self.scheduler.reset_prefix_cache(
            reset_running_requests=reset_running_requests, reset_connector=reset_external
        )

    def check(self) -> None:
        self.scheduler.check()
        if self._transfers is not None:
            self._transfers.check()
        waiting = {
            request.request_id
            for request in self.scheduler.requests.values()
            if not request.is_finished()
        }
        if waiting != self._open.keys():
            raise BrokenInvariantError("the scheduler's requests are not the open ones")
