"""The scheduler: decides which requests compute how many tokens in the next step.

There are no phases of prefill and decoding: a request has tokens, prompt and answer, and a number of
computed tokens, and each step lets some requests catch up.
`lab/simworker/v1/scheduling/schedule_step.py` schedules one step; the scheduler keeps the state
between steps.

    add_request ──► waiting ──schedule()──► running ──update_from_output()──► finished
                       ▲                       │
                       └─────── preempted ─────┘      its blocks are freed, and stay cached; it
                                                      computes evicted ones again

With an offload tier (`connector`) a request whose prefix lies in host memory waits, holding blocks,
until they are loaded (WAITING_FOR_REMOTE_KVS). Such requests have a queue of their own, which is
scheduled first.

Source: `vllm/v1/core/sched/scheduler.py` of 0.32, for models that generate text, on one rank, without
asynchronous scheduling; one file as there, to be read beside it. Left out: speculative tokens,
structured output, encoders, sessions with streamed input, balancing of prefills between ranks, failed
loads.
"""

from collections.abc import Iterable, Mapping

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.offload.transfer import OffloadingMetadata
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.scheduling.schedule_step import SchedulerState, ScheduleStep
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState
from warmpath.lab.simworker.v1.scheduling.scheduler_output import RequestOutput, SchedulerOutput


class Scheduler(SchedulerState):
    """Requests from their arrival to their end, over one KV cache manager."""

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn. Raises ValueError if its id is in use."""
        if request.request_id in self.requests:
            raise ValueError(f"request_id {request.request_id!r} is that of another request")
        self.requests[request.request_id] = request
        self.waiting.add_request(request)
        if self.connector is not None:
            self.connector.on_new_request(request)

    def finish_requests(
        self,
        request_ids: str | Iterable[str] | None,
        finished_status: RequestStatus = RequestStatus.FINISHED_ABORTED,
    ) -> list[Request]:
        """Abort requests, all of them for None; return those that had not finished yet.

        Their blocks stay cached. Unknown ids are ignored. Raises ValueError for a status that is not a
        finished one.
        """
        if not RequestStatus.is_finished(finished_status):
            raise ValueError(f"finished_status is {finished_status.name}, not a finished one")
        if request_ids is None:
            request_ids = list(self.requests)
        elif isinstance(request_ids, str):
            request_ids = (request_ids,)
        found = dict.fromkeys(
            request
            for request_id in request_ids
            if (request := self.requests.get(request_id)) and not request.is_finished()
        )
        running = {request for request in found if request.status is RequestStatus.RUNNING}
        if running:
            self.running = [request for request in self.running if request not in running]
        if len(running) < len(found):
            self.waiting.remove_requests(found)
            self.kv_holding_waiting.remove_requests(found)
            self.deferred_waiting.difference_update(found)
        for request in found:
            # Blocks of a load under way are freed when the load has ended.
            loading = (
                request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
                and request.request_id not in self.finished_recving_kv_req_ids
            )
            self.finished_recving_kv_req_ids.discard(request.request_id)
            request.status = finished_status
            in_flight = self._in_flight.get(request.request_id, 0)
            self._free_request(request, in_flight, aborted=True, delay_free_blocks=loading)
        return list(found)

    def _free_request(
        self,
        request: Request,
        num_in_flight_tokens: int = 0,
        *,
        aborted: bool = False,
        delay_free_blocks: bool = False,
    ) -> None:
        self.inflight_prefills.discard(request)
        self.finished_req_ids.add(request.request_id)
        if self.connector is not None:
            # Blocks that left their window are freed first, and so used first.
            processed = max(0, request.num_computed_tokens - num_in_flight_tokens)
            self.kv_cache_manager.remove_skipped_blocks(
                request.request_id, processed, request.num_prompt_tokens
            )
            self.connector.request_finished(request, aborted=aborted)
        if not delay_free_blocks:
            self._free_blocks(request)

    def _free_blocks(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]

    def schedule(self) -> SchedulerOutput:
        """Decide the next step, give its requests their blocks, and count its tokens as computed."""
        output = SchedulerOutput()
        if self.pause_state is not PauseState.PAUSED_ALL:
            step = ScheduleStep(self, output)
            step.schedule_running()
            if not step.has_preempted:
                step.schedule_waiting()
        output.preempted_req_ids, self.preempted_req_ids = self.preempted_req_ids, set()
        output.finished_req_ids, self.finished_req_ids = self.finished_req_ids, set()
        if self.connector is not None:
            output.kv_connector_metadata = self._build_connector_meta(self.connector, output)
        self._update_after_schedule(output)
        self._in_flight = output.num_scheduled_tokens
        return output

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        work = output.work
        requests = self.requests
        for request_id, new in output.num_scheduled_tokens.items():
            request = requests[request_id]
            before = request.num_computed_tokens
            request.num_computed_tokens = before + new
            if new == 1 and before >= request.num_prompt_tokens:
                work.decoding += 1
                work.decoding_context += before
            else:
                work.prefills.append((new, before))
        if self.inflight_prefills:
            self.inflight_prefills -= {
                request
                for request in self.inflight_prefills
                if request.status is RequestStatus.RUNNING
                and request.num_computed_tokens >= request.num_tokens
            }

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, list[int]]
    ) -> list[RequestOutput]:
        """Take the tokens sampled in a step, by request id; return each request's output.

        A request whose prompt is not wholly computed samples none. Requests that were aborted, or
        preempted by a reset, since the step was scheduled get none. (vLLM's method takes the model
        runner's whole output, and publishes the cache's events too, which `take_events` returns here.)
        """
        outputs = []
        ended = set()
        self._in_flight = {}
        for request_id in output.num_scheduled_tokens:
            tokens = sampled_token_ids.get(request_id)
            request = self.requests.get(request_id)
            if not tokens or request is None or request.status is not RequestStatus.RUNNING:
                continue
            left = self.tokens_left(request)
            if len(tokens) > left:
                tokens = tokens[:left]
            finished = len(tokens) >= left
            request.append_output_token_ids(tokens)
            if finished:
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                ended.add(request)
                self._free_request(request)
            outputs.append(RequestOutput(request, tokens, finished))
        if ended:
            self.running = [request for request in self.running if request not in ended]
        return outputs

    def tokens_left(self, request: Request) -> int:
        """Return the number of tokens that a request may still sample."""
        longest = min(request.num_prompt_tokens + request.max_tokens, self.config.max_model_len)
        return longest - request.num_tokens

    def _build_connector_meta(
        self, connector: OffloadingConnector, output: SchedulerOutput
    ) -> OffloadingMetadata:
        return connector.build_connector_meta(
            num_scheduled_tokens=output.num_scheduled_tokens,
            new_block_ids={
                request_id: blocks.get_block_ids()
                for request_id, blocks in output.req_to_new_blocks.items()
            },
            resumed_req_ids=[one.request_id for one in output.scheduled_resumed_reqs],
            preempted_req_ids=output.preempted_req_ids,
            finished_req_ids=output.finished_req_ids,
        )

    def update_connector_output(self, completed_jobs: Iterable[int]) -> None:
        """Note that transfers have ended: requests whose loads are among them can be scheduled."""
        if self.connector is None:
            return
        for request_id in self.connector.update_connector_output(completed_jobs):
            request = self.requests[request_id]
            if request.is_finished():
                self._free_blocks(request)
            else:
                self.finished_recving_kv_req_ids.add(request_id)

    def take_events(self) -> list[CacheEvent]:
        """Return the caches' events since the last call, the GPU's first."""
        events = self.kv_cache_manager.take_events()
        if self.connector is not None:
            events.extend(self.connector.take_events())
        return events

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests that coming steps would compute: fewer or none in a pause."""
        if self.pause_state is PauseState.PAUSED_ALL:
            return 0
        if self.pause_state is PauseState.PAUSED_NEW:
            return len(self.running) + len(self.kv_holding_waiting)
        return sum(self.get_request_counts())

    def has_unfinished_requests(self) -> bool:
        """Whether steps would compute any request."""
        return self.get_num_unfinished_requests() > 0

    def has_finished_requests(self) -> bool:
        """Whether the next step has finished requests to report, or loads for such requests go on."""
        if self.finished_req_ids:
            return True
        return self.connector is not None and len(self.requests) > sum(self.get_request_counts())

    def has_requests(self) -> bool:
        """Whether there is a reason for another step."""
        return (
            self.has_unfinished_requests()
            or self.has_finished_requests()
            or (self.connector is not None and self.connector.has_pending_push_work())
        )

    def reset_prefix_cache(
        self, *, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached content; return False, and change nothing, while requests hold blocks.

        With `reset_running_requests` the running ones are preempted first, and run again in their
        order. Raises RuntimeError if requests that wait for a load hold blocks even so. With
        `reset_connector` the offload tier forgets its content too, even if the cache could not; while a
        load reads from the tier, it keeps its content, and False is returned.
        """
        if reset_running_requests:
            while self.running:
                self.preempt_request(self.running.pop())
        done = self.kv_cache_manager.reset_prefix_cache()
        if reset_running_requests and not done:
            raise RuntimeError("blocks are held by requests that wait for a load: not reset")
        if reset_connector and self.connector is not None:
            if any(
                request.status is RequestStatus.WAITING_FOR_REMOTE_KVS or request.is_finished()
                for request in self.requests.values()
            ):
                return False
            self.connector.reset_cache()
        return done

    def check(self) -> None:
        self.kv_cache_manager.check()
        if self.connector is not None:
            self.connector.check()
        for queue in (self.waiting, self.kv_holding_waiting):
            queue.check()
        places = [*self.running, *self.waiting, *self.kv_holding_waiting]
        if len(set(places)) != len(places):
            raise BrokenInvariantError("a request is in two queues")
        for request in places:
            known = self.requests.get(request.request_id) is request
            if request.is_finished() or not known:
                raise BrokenInvariantError(
                    f"request {request.request_id} is queued, but finished or unknown"
                )
        if len(self.running) > self.config.max_num_seqs:
            raise BrokenInvariantError(f"{len(self.running)} requests run")
        if any(request.status is not RequestStatus.RUNNING for request in self.running):
            raise BrokenInvariantError("a running request has another status")
        if not self.deferred_waiting <= {*self.waiting, *self.kv_holding_waiting}:
            raise BrokenInvariantError("a deferred request does not wait")
        for request in self.waiting:
            if any(self.kv_cache_manager.get_block_ids(request.request_id)):
                raise BrokenInvariantError(f"request {request.request_id} waits with blocks")
