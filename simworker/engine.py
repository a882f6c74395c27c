"""The engine: steps of the scheduler, each as long as the latency model says.

`Engine` decides and is free of time; `run` is the shell that waits. Durations are divided by `speed`.
The shell keeps the moment at which each step *should* end, so that waiting too long once is made good
by the next steps, and does not sleep for less than `SHORTEST_SLEEP`.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from simworker.emit import encode_batch
from simworker.event import CacheEvent
from simworker.kv_cache_manager import KVCacheManager
from simworker.latency import LatencyModel
from simworker.request import Request
from simworker.scheduler import Scheduler, Step

SHORTEST_SLEEP = 0.002
"""Seconds; less than what an event loop keeps to anyway."""

MOST_BEHIND = 1.0
"""Seconds of delay that are made good; beyond, the machine is too slow for the speed asked for."""

RESERVED_TOKENS = 16
"""Ids below are taken for special ones and never generated."""

OnTokens = Callable[[list[int], bool], None]
"""Takes newly generated tokens, and whether they are the last."""


class RefusedError(Exception):
    """A request that can never be served; says why."""


class Engine:
    """Requests in, tokens and cache events out."""

    def __init__(
        self,
        manager: KVCacheManager,
        scheduler: Scheduler,
        latency: LatencyModel,
        *,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self.manager = manager
        self.scheduler = scheduler
        self.latency = latency
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._open: dict[str, tuple[Request, OnTokens]] = {}

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._open)

    def submit(self, request: Request, on_tokens: OnTokens) -> None:
        """Take a request. Raises RefusedError where it can never be served."""
        length = request.num_prompt_tokens + request.max_tokens
        if length > self._max_model_len:
            raise RefusedError(
                f"{request.num_prompt_tokens} prompt tokens and max_tokens {request.max_tokens} "
                f"are more than max_model_len {self._max_model_len}"
            )
        pool = self.manager.block_pool
        if -(-length // pool.block_size) > len(pool.blocks) - 1:
            raise RefusedError(f"{length} tokens do not fit into {len(pool.blocks) - 1} blocks")
        self._open[request.request_id] = (request, on_tokens)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are passed over."""
        found = self._open.pop(request_id, None)
        if found is not None:
            self.scheduler.abort(found[0])

    def begin_step(self) -> tuple[Step, float]:
        """Schedule a step; return it and its modelled seconds."""
        step = self.scheduler.schedule()
        return step, self.latency.step(step.prefills, step.decoding, step.decoding_context)

    def end_step(self, step: Step) -> list[CacheEvent]:
        """Generate what the step was for; return what happened to the cache."""
        for request_id in step.tokens:
            found = self._open.get(request_id)
            if found is None:
                continue
            request, on_tokens = found
            if request.num_computed_tokens < request.num_tokens:
                continue
            token = self._next_token(request)
            request.append(token)
            finished = request.is_finished
            if finished:
                del self._open[request_id]
                self.scheduler.finish(request)
            on_tokens([token], finished)
        return self.manager.take_events()

    def _next_token(self, request: Request) -> int:
        """Return a token that is a function of the tokens before it."""
        seed = request.block_hashes[-1] if request.block_hashes else b""
        last = request.token_ids[-1].to_bytes(4, "little")
        draw = zlib.crc32(last + request.num_tokens.to_bytes(4, "little"), zlib.crc32(seed))
        span = self._vocab_size - RESERVED_TOKENS
        return RESERVED_TOKENS + draw % span if span > 0 else draw % self._vocab_size


class EngineShell:
    """Runs an engine in time. `clock` and `sleep` are seconds; `wall` stamps the batches."""

    def __init__(
        self,
        engine: Engine,
        publish: Callable[[bytes], None],
        *,
        speed: float,
        rank: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.engine = engine
        self.behind = 0.0
        """The longest that a step ended late and was not made good, seconds."""
        self._publish = publish
        self._speed = speed
        self._rank = rank
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._wake = asyncio.Event()

    def submit(self, request: Request, on_tokens: OnTokens) -> None:
        """Take a request. Raises RefusedError where it can never be served."""
        self.engine.submit(request, on_tokens)
        self._wake.set()

    async def run(self) -> None:
        """Step for as long as there are requests, wait for more otherwise; until cancelled."""
        due = self._clock()
        while True:
            if not self.engine.busy:
                self._wake.clear()
                await self._wake.wait()
                due = self._clock()
            step, seconds = self.engine.begin_step()
            due += seconds / self._speed
            left = due - self._clock()
            if left < -MOST_BEHIND:
                self.behind = max(self.behind, -left)
                due -= left
            # Even a step that is late lets the server answer.
            await self._sleep(left if left >= SHORTEST_SLEEP else 0)
            events = self.engine.end_step(step)
            if events:
                self._publish(encode_batch(self._wall(), events, self._rank))
