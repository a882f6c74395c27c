"""The policy study's engine: prompts one after the other, answers all together.

    prefill   first come, first served, one at a time; it takes the seconds of `LatencyModel`, longer
              by CROWDING for each decoding sequence
    decode    all sequences advance together, a token a step, OVERLAP times as fast while a
              prefill is under way; progress is counted in fractions of steps
    cache     `lab/simworker/serial/block_cache.py`; a prompt's blocks can be found once its prefill is
              over. The last block counts even if it is not full. A request that does not fit waits, and
              so do all behind it, until a running request ends

A step lasts until the next end of a prefill or of an answer, since nothing changes before that.
"""

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Generation,
    Load,
    RequestRefusedError,
)
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.serial.block_cache import BlockCache
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.hashing.block_hash import maybe_convert_block_hash

CROWDING = 0.004
"""A decoding sequence makes a prefill longer by this share."""
OVERLAP = 0.35
"""Speed of decoding beside a prefill, as a share of the speed without."""
MAX_DECODING = 128
"""The most sequences that decode at once; while this many decode, no prefill begins."""

_ALMOST = 1e-9
"""Seconds: a prefill is over if no more than this is left of it."""
_ALMOST_STEP = 1e-6
"""Decode steps: an answer is over if no more than this is left of it."""


@dataclass(slots=True, eq=False)
class _Request:
    generation: Generation
    blocks: Sequence[bytes]
    answer_blocks: int
    matched: int = 0
    """Leading blocks found in the cache."""
    first: float = 0.0
    """Decode steps that the engine had taken at the request's first token."""
    tokens: int = 0
    """Number of the answer's tokens handed out so far."""


class SerialEngine:
    """One engine. Requests need `prompt_hashes`, with or without the last block's, if it is not full.

    Several engines may share a cache; each then finds every block in it, which bounds the hit ratio that
    routing can reach. Raises ValueError for a `block_size` below 1.
    """

    def __init__(
        self,
        cache: BlockCache,
        block_size: int,
        latency: LatencyModel | None = None,
        *,
        max_decoding: int = MAX_DECODING,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size} tokens; it must be at least 1")
        self.cache = cache
        self.block_size = block_size
        self.latency = latency or LatencyModel()
        self.prefill_seconds = 0.0
        """Seconds of all prefills begun."""
        self._max_decoding = max_decoding
        self._open: dict[str, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._prefilling: _Request | None = None
        self._prefill_left = 0.0
        """Seconds until the prefill under way ends."""
        self._decoding: list[tuple[float, int, _Request]] = []
        """A heap of (decode steps taken at its end, number that breaks ties, request)."""
        self._context = 0
        """Prompt tokens of all decoding requests."""
        self._steps = 0.0
        """Decode steps taken."""
        self._admitted = 0
        self._seconds = 0.0
        """Seconds of the step begun."""
        self._speed = 0.0
        """Decode steps a second in the step begun."""
        self._events: list[CacheEvent] = []
        self._queries = 0
        self._hits = 0

    @property
    def busy(self) -> bool:
        return bool(self._open or self._decoding)

    @property
    def is_decoding(self) -> bool:
        return bool(self._decoding)

    def submit(self, generation: Generation) -> None:
        hashes, tokens = generation.prompt_hashes, generation.num_prompt_tokens
        if hashes is None:
            raise RequestRefusedError(
                "prompt_hashes: this engine needs them, it does not read token ids"
            )
        if tokens < 1:
            raise RequestRefusedError("the prompt is empty")
        if generation.max_tokens < 1:
            raise RequestRefusedError(f"max_tokens is {generation.max_tokens}, less than 1")
        full = tokens // self.block_size
        if not full <= len(hashes) <= full + 1:
            raise RequestRefusedError(
                f"prompt_hashes: {len(hashes)} for {tokens} tokens; {full} or {full + 1} are needed"
            )
        answer = -(-generation.max_tokens // self.block_size)
        if len(hashes) + answer > self.cache.capacity:
            raise RequestRefusedError(
                f"{tokens} prompt tokens and max_tokens {generation.max_tokens} do not fit into "
                f"{self.cache.capacity} blocks"
            )
        if generation.request_id in self._open:
            raise RequestRefusedError(f"request id {generation.request_id!r} is in use")
        request = _Request(generation, hashes, answer)
        self._open[generation.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are ignored. The blocks that it computed stay cached.

        Blocks of a prefill under way do not count as computed. The caller ends the step begun first
        (`cut_step`), or calls between steps. The request gets the tokens made by then.
        """
        request = self._open.pop(request_id, None)
        if request is None:
            return
        if request is self._prefilling:
            self._prefilling = None
            held, fresh = request.blocks[: request.matched], request.blocks[request.matched :]
            self.cache.unpin(fresh, 0, computed=False)
            self.cache.unpin(held, request.answer_blocks)
        elif request.tokens:
            generation = request.generation
            done = int(self._steps + self._seconds * self._speed - request.first)
            made = min(max(done + 1, request.tokens), generation.max_tokens)
            self._hand_out(request, made, last=False)
            self._decoding = [entry for entry in self._decoding if entry[2] is not request]
            heapq.heapify(self._decoding)
            self._leave(request)
        else:
            self._waiting.remove(request)

    def begin_step(self, horizon: float = 0.0) -> float:
        """Begin the next prefill if it can begin; return the seconds until a prefill or answer ends.

        A step takes no time if blocks were evicted for it, so that their events go out at once.
        """
        del horizon
        self._begin_prefill()
        decoding = self._decoding
        work = StepWork([], len(decoding), self._context)
        self._speed = 1 / self.latency.step(work)
        if self._prefilling is not None:
            self._speed *= OVERLAP
        seconds = self._prefill_left if self._prefilling is not None else inf
        if decoding:
            seconds = min(seconds, max(0.0, (decoding[0][0] - self._steps) / self._speed))
        if seconds == inf:
            # An engine that shares the cache has taken the room: try again soon.
            seconds = self.latency.base
        self._seconds = 0.0 if self._events else seconds
        return self._seconds

    def _begin_prefill(self) -> None:
        waiting, decoding = self._waiting, len(self._decoding)
        if self._prefilling is not None or not waiting or decoding >= self._max_decoding:
            return
        request = waiting[0]
        if not self.cache.fits(request.blocks, request.answer_blocks):
            return
        waiting.popleft()
        request.matched = self.cache.matched(request.blocks)
        gone = self.cache.pin(request.blocks, request.answer_blocks)
        if gone:
            self._events.append(
                BlockRemoved([maybe_convert_block_hash(block) for block in gone], MEDIUM_GPU)
            )
        generation = request.generation
        tokens = generation.num_prompt_tokens
        cached = min(request.matched * self.block_size, tokens - 1)
        generation.num_cached_tokens = cached
        self._queries += tokens
        self._hits += cached
        seconds = self.latency.step(StepWork([(tokens - cached, cached)]))
        self._prefill_left = seconds * (1 + CROWDING * decoding)
        self.prefill_seconds += self._prefill_left
        self._prefilling = request

    def cut_step(self, elapsed: float) -> float:
        """Make the step begun end after `elapsed` seconds, if it lasts longer; return its seconds."""
        self._seconds = min(self._seconds, max(elapsed, 0.0))
        return self._seconds

    def end_step(self) -> list[CacheEvent]:
        if self._decoding:
            self._steps += self._seconds * self._speed
        request = self._prefilling
        if request is not None:
            self._prefill_left -= self._seconds
        # An abort between steps must not count this step again.
        self._seconds = 0.0
        self._end_answers()
        if request is not None and self._prefill_left <= _ALMOST:
            self._end_prefill(request)
        events, self._events = self._events, []
        return events

    def _end_prefill(self, request: _Request) -> None:
        self._prefilling = None
        generation = request.generation
        request.first = self._steps
        self._admitted += 1
        end = self._steps + generation.max_tokens - 1
        heapq.heappush(self._decoding, (end, self._admitted, request))
        self._context += generation.num_prompt_tokens
        fresh = request.blocks[request.matched :]
        if fresh:
            parent = (
                maybe_convert_block_hash(request.blocks[request.matched - 1])
                if request.matched
                else None
            )
            names = [maybe_convert_block_hash(block) for block in fresh]
            size = self.block_size
            self._events.append(BlockStored(names, parent, [], size, None, MEDIUM_GPU, None))
        self._hand_out(request, 1, last=generation.max_tokens == 1)

    def _end_answers(self) -> None:
        decoding = self._decoding
        while decoding and decoding[0][0] <= self._steps + _ALMOST_STEP:
            request = heapq.heappop(decoding)[2]
            self._leave(request)
            if request.tokens < request.generation.max_tokens:
                self._hand_out(request, request.generation.max_tokens, last=True)

    def _leave(self, request: _Request) -> None:
        """Release a decoding request's blocks."""
        self._context -= request.generation.num_prompt_tokens
        self.cache.unpin(request.blocks, request.answer_blocks)

    def _hand_out(self, request: _Request, tokens: int, *, last: bool) -> None:
        generation = request.generation
        new = tokens - request.tokens
        request.tokens = generation.num_output_tokens = tokens
        if last:
            del self._open[generation.request_id]
        if new:
            generation.on_tokens([0] * new, last)

    def load(self) -> Load:
        return Load(
            running=len(self._decoding) + (self._prefilling is not None),
            waiting=len(self._waiting),
            kv_cache_usage=self.cache.used / self.cache.capacity,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            preemptions=0,
        )

    def reset_prefix_cache(self, *, reset_external: bool = False) -> bool:
        del reset_external
        if not self.cache.clear():
            return False
        self._events.append(AllBlocksCleared())
        return True

    def check(self) -> None:
        self.cache.check()
        running = [entry[2] for entry in self._decoding]
        if sum(request.generation.num_prompt_tokens for request in running) != self._context:
            raise BrokenInvariantError("the decoding context is not that of the decoding requests")
        if self._prefilling is not None:
            running.append(self._prefilling)
        answers = sum(request.answer_blocks for request in running)
        users = Counter(block for request in running for block in request.blocks)
        if not self.cache.holds(users, answers):
            raise BrokenInvariantError("a running request's blocks are not pinned")
        ids = {
            request.generation.request_id
            for request in (*running, *self._waiting)
            if request.tokens < request.generation.max_tokens
        }
        if ids != self._open.keys():
            raise BrokenInvariantError("the waiting and running requests are not the open ones")
