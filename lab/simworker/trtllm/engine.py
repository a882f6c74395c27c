"""TensorRT-LLM's engine: in-flight batching over one `KVCacheManager`.

The order of a step is that of its executor (1.2): choose the requests that may run, allocate,
compute; then store the contexts that are complete, append tokens, remove the requests that
have ended, and flush the iteration's events. Blocks that decoding fills are cached when their request
ends.
"""

from typing import Any

from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Generation,
    Load,
    RequestRefusedError,
)
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.sampler import extend_seed, next_token, seed_of
from warmpath.lab.simworker.trtllm.blocks.block_key import get_cache_salt_id
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import KVCacheEvent, serialise
from warmpath.lab.simworker.trtllm.requests.llm_request import (
    ActiveRequest,
    LlmRequest,
    RequestState,
)
from warmpath.lab.simworker.trtllm.schedulers import CapacityScheduler, MicroBatchScheduler


class TrtllmEngine:
    """An `Engine` whose events are fetched: `latest_events` returns them as `/kv_cache_events` does.

    Adapters get ids in the order in which requests first name them. `Generation.priority` and
    `skip_reading_prefix_cache` have no effect: this engine has neither. Each request wishes `retention`
    for its blocks: trtllm-serve has no field for it, only the LLM API has an argument.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        latency: LatencyModel,
        *,
        vocab_size: int,
        max_batch_size: int = 64,
        max_num_tokens: int = 8192,
        enable_chunked_context: bool = True,
        retention: KvCacheRetentionConfig | None = None,
    ) -> None:
        self.manager = manager
        self.latency = latency
        self._vocab_size = vocab_size
        self._retention = retention
        self._max_context = None if enable_chunked_context else max_num_tokens
        self._capacity = CapacityScheduler(manager, max_batch_size)
        unit = manager.tokens_per_block if enable_chunked_context else None
        self._batch = MicroBatchScheduler(max_batch_size, max_num_tokens, unit)
        self._active: dict[str, ActiveRequest] = {}
        self._contexts: list[ActiveRequest] = []
        self._generating: list[ActiveRequest] = []
        self._adapters: dict[str, int] = {}
        self._next_id = 0
        self._announced: list[KVCacheEvent] = []
        self._queries = 0
        self._hits = 0
        self.work = StepWork()
        """The work of the step begun last."""
        self._flush()

    @property
    def busy(self) -> bool:
        return bool(self._active)

    def submit(self, generation: Generation) -> None:
        request = self._new_request(generation)
        for window, blocks in self._capacity.most_blocks(request).items():
            limit = self.manager.windows[window].num_primary_blocks
            if blocks > limit:
                raise RequestRefusedError(
                    f"{blocks} blocks are needed in window {window}; it has {limit}"
                )
        self._next_id += 1
        self._active[generation.request_id] = request

    def _new_request(self, generation: Generation) -> ActiveRequest:
        if generation.request_id in self._active:
            raise RequestRefusedError(f"request_id {generation.request_id} is in use")
        if generation.max_tokens < 1 or not generation.num_prompt_tokens:
            raise RequestRefusedError("a prompt and max_tokens of at least 1 token are needed")
        length = generation.num_prompt_tokens + generation.max_tokens
        limit = self.manager.max_sequence_length
        if length > limit:
            raise RequestRefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens} are more than max_sequence_length {limit}"
            )
        if self._max_context is not None and length > self._max_context:
            raise RequestRefusedError(
                f"{length} tokens are more than max_num_tokens {self._max_context}"
            )
        try:
            salt = get_cache_salt_id(generation.cache_salt) if generation.cache_salt else None
        except ValueError as error:
            raise RequestRefusedError(str(error)) from error
        adapter = None
        if generation.lora_name:
            adapter = self._adapters.setdefault(generation.lora_name, len(self._adapters) + 1)
        llm = LlmRequest(
            self._next_id,
            list(generation.prompt),
            generation.max_tokens,
            lora_task_id=adapter,
            cache_salt_id=salt,
            retention=self._retention,
            num_computed_tokens=0,
        )
        return ActiveRequest(llm, generation, seed_of(generation.prompt))

    def abort(self, request_id: str) -> None:
        request = self._active.pop(request_id, None)
        if request is not None:
            self.manager.remove_sequence(request.llm.request_id, request.llm)
            self._flush()

    def begin_step(self, horizon: float = 0.0) -> float:
        del horizon
        self.manager.refresh_blocks()
        fitting = self._capacity.schedule(list(self._active.values()))
        self._contexts, self._generating = self._batch.schedule(fitting)
        self.work = StepWork()
        for request in self._contexts:
            if request.state is RequestState.WAITING:
                self._start(request)
            self.work.prefills.append((request.context_chunk_size, request.context_position))
        for request in self._generating:
            self.manager.add_token(request.llm.request_id)
            self.work.decoding += 1
            self.work.decoding_context += len(request.llm.tokens)
        return self.latency.step(self.work)

    def _start(self, request: ActiveRequest) -> None:
        """Give a request its context's blocks; cached tokens are not computed."""
        llm = request.llm
        self.manager.add_sequence(llm.request_id, llm.prompt_len, llm)
        found = llm.prepopulated_prompt_len
        self._queries += llm.prompt_len
        self._hits += found
        if request.generation.num_cached_tokens < 0:
            request.generation.num_cached_tokens = found
        end = min(found + request.context_chunk_size, llm.prompt_len)
        if end < llm.prompt_len:
            end -= end % self.manager.tokens_per_block
        request.state = RequestState.CONTEXT
        request.context_position = found
        request.context_chunk_size = end - found
        llm.num_computed_tokens = found

    def end_step(self) -> list[KVCacheEvent]:
        contexts, generating = self._contexts, self._generating
        self._contexts, self._generating = [], []
        for request in contexts:
            if self._is_open(request) and self._advance(request):
                self._append(request)
        for request in generating:
            if self._is_open(request):
                self._append(request)
        self._flush()
        announced, self._announced = self._announced, []
        return announced

    def _is_open(self, request: ActiveRequest) -> bool:
        return self._active.get(request.generation.request_id) is request

    def _advance(self, request: ActiveRequest) -> bool:
        """Count a chunk as computed; return whether it was the context's last."""
        llm = request.llm
        request.context_position += request.context_chunk_size
        llm.num_computed_tokens = request.context_position
        if request.context_remaining_length:
            return False
        llm.num_computed_tokens = None
        request.state = RequestState.GENERATING
        self.manager.store_context_blocks(llm)
        return True

    def _append(self, request: ActiveRequest) -> None:
        llm, generation = request.llm, request.generation
        token = next_token(request.seed, llm.tokens[-1], len(llm.tokens), self._vocab_size)
        request.seed = extend_seed(request.seed, token)
        llm.add_new_token(token)
        generation.num_output_tokens += 1
        finished = generation.num_output_tokens >= generation.max_tokens
        if finished:
            del self._active[generation.request_id]
            self.manager.remove_sequence(llm.request_id, llm)
        generation.on_tokens([token], finished)

    def _flush(self) -> None:
        self._announced += self.manager.flush_iteration_events()

    def latest_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call, as `/kv_cache_events` does, and forget them."""
        return [serialise(event) for event in self.manager.get_latest_events()]

    def load(self) -> Load:
        running = sum(request.has_started for request in self._active.values())
        blocks = sum(window.num_primary_blocks for window in self.manager.windows.values())
        return Load(
            running=running,
            waiting=len(self._active) - running,
            kv_cache_usage=1 - self.manager.get_num_free_blocks() / blocks,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            preemptions=0,
        )

    def reset_prefix_cache(self, *, reset_external: bool = False) -> bool:
        """Forget all cached content, announced as removed; False while requests hold blocks.

        The secondary pool's content is always forgotten too.
        """
        del reset_external
        done = self.manager.reset_reuse_state()
        self._flush()
        return done

    def check(self) -> None:
        self.manager.check()
        for request in self._active.values():
            llm = request.llm
            if not request.has_started:
                continue
            held = self.manager.get_sequence(llm.request_id).num_tokens
            if request.state is RequestState.CONTEXT:
                wanted = {llm.prompt_len}
            else:
                wanted = {len(llm.tokens) - 1, len(llm.tokens)}
            if held not in wanted:
                raise BrokenInvariantError(
                    f"request {llm.request_id} has {len(llm.tokens)} tokens, {held} in the cache"
                )
