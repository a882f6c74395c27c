"""vLLM v1's engine: the scheduler's steps, each as long as the latency model says."""

import zlib

from simworker.engine import Generation, Load, RefusedError
from simworker.latency import LatencyModel, StepWork
from simworker.v1.kv_cache_event import CacheEvent
from simworker.v1.kv_cache_manager import KVCacheManager
from simworker.v1.request import Hasher, Request
from simworker.v1.scheduler import Scheduler, Step

RESERVED_TOKENS = 16
"""Ids below are taken for special ones and never generated."""


class V1Engine:
    """The unified scheduler over one `KVCacheManager`."""

    def __init__(
        self,
        manager: KVCacheManager,
        scheduler: Scheduler,
        latency: LatencyModel,
        hasher: Hasher,
        *,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self.manager = manager
        self.scheduler = scheduler
        self.latency = latency
        self._hasher = hasher
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._step = Step()
        self._open: dict[str, tuple[Request, Generation]] = {}

    @property
    def work(self) -> StepWork:
        """What the step last begun computes."""
        return self._step.work

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._open)

    def submit(self, generation: Generation) -> None:
        """Take a request. Raises RefusedError where it can never be served."""
        length = generation.num_prompt_tokens + generation.max_tokens
        if length > self._max_model_len:
            raise RefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens} are more than max_model_len {self._max_model_len}"
            )
        pool = self.manager.block_pool
        if -(-length // pool.block_size) > len(pool.blocks) - 1:
            raise RefusedError(f"{length} tokens do not fit into {len(pool.blocks) - 1} blocks")
        request = Request(
            generation.request_id,
            generation.prompt,
            hasher=self._hasher,
            max_tokens=generation.max_tokens,
            cache_salt=generation.cache_salt,
            lora_name=generation.lora_name,
            skip_reading_prefix_cache=generation.skip_reading_prefix_cache,
        )
        self._open[request.request_id] = (request, generation)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are passed over."""
        found = self._open.pop(request_id, None)
        if found is not None:
            self.scheduler.abort(found[0])

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step; return its modelled seconds."""
        del horizon
        self._step = self.scheduler.schedule()
        return self.latency.step(self._step.work)

    def end_step(self) -> list[CacheEvent]:
        """Generate what the step was for; return what happened to the cache."""
        for request_id in self._step.tokens:
            found = self._open.get(request_id)
            if found is None:
                continue
            request, generation = found
            if generation.num_cached_tokens < 0:
                generation.num_cached_tokens = request.num_cached_tokens
            if request.num_computed_tokens < request.num_tokens:
                continue
            token = self._next_token(request)
            request.append(token)
            generation.num_output_tokens += 1
            generation.num_preemptions = request.num_preemptions
            finished = request.is_finished
            if finished:
                del self._open[request_id]
                self.scheduler.finish(request)
            generation.on_tokens([token], finished)
        return self.manager.take_events()

    def load(self) -> Load:
        """Return the figures that metrics show."""
        return Load(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_cache_usage=self.manager.block_pool.get_usage(),
            prefix_cache_queries=self.manager.stats.queries,
            prefix_cache_hits=self.manager.stats.hits,
            preemptions=self.scheduler.num_preemptions,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False while requests run."""
        return self.manager.reset_prefix_cache()

    def _next_token(self, request: Request) -> int:
        """Return a token that is a function of the tokens before it."""
        seed = request.block_hashes[-1] if request.block_hashes else b""
        last = request.token_ids[-1].to_bytes(4, "little")
        draw = zlib.crc32(last + request.num_tokens.to_bytes(4, "little"), zlib.crc32(seed))
        span = self._vocab_size - RESERVED_TOKENS
        return RESERVED_TOKENS + draw % span if span > 0 else draw % self._vocab_size
