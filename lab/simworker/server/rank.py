"""One data-parallel rank: an engine in real time, its requests, and its lives.

A restart begins a new life: another engine with an empty cache, and events numbered from 0 again. A rank
can take requests back from any engine and give them to it again. It does so to reset the cache under
running requests, which vLLM preempts and recomputes, and to keep the requests of a sleeping engine.
Unlike vLLM's, an engine paused with mode `keep` gives its blocks back meanwhile; their content stays
cached.

Source of the choice of a rank: `DPLBAsyncMPClient.get_core_engine_for_request` in
`vllm/v1/engine/core_client.py` of 0.32, with one client whose counts are always current,
where vLLM's are 100 ms old at worst.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Engine,
    EngineFailedError,
    Load,
    RequestRefusedError,
)
from warmpath.lab.simworker.server.flight import Flight
from warmpath.lab.simworker.server.shell import EngineShell, Pace
from warmpath.lab.simworker.server.sleep_state import PauseMode
from warmpath.lab.simworker.server.task_set import TaskSet

EventT = TypeVar("EventT")


class Observer(Protocol):
    """Counts and times requests."""

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """Count a computed prompt, whose first token came `seconds` after its arrival."""

    def tokens(self, count: int) -> None:
        """Count generated tokens."""

    def finished(self, seconds: float, reason: str) -> None:
        """Count a request that ended for `reason`, `seconds` after its arrival."""


class Rank(Generic[EventT]):
    """Takes requests, gives tokens to their sinks and events to `announce`, life after life."""

    def __init__(
        self,
        number: int,
        new_engine: Callable[[], Engine[EventT]],
        announce: Callable[[Sequence[EventT]], None],
        begin_stream: Callable[[], None],
        new_observer: Callable[[], Observer],
        *,
        clock: Callable[[], float],
        pace: Pace,
        tasks: TaskSet,
    ) -> None:
        """`begin_stream` numbers events from 0 again, and announces a life's opening events."""
        self.number = number
        self.pace = pace
        self.paused = False
        """Whether new requests wait outside the engine."""
        self._new_engine = new_engine
        self._announce = announce
        self._begin_stream = begin_stream
        self._new_observer = new_observer
        self._clock = clock
        self._tasks = tasks
        self._flights: dict[str, Flight] = {}
        """Requests in the engine, in the order in which they came."""
        self._parked: dict[str, Flight] = {}
        self._drained = asyncio.Event()
        self._drained.set()
        self._behind = 0.0
        self._begin_life()

    def _begin_life(self) -> None:
        self._begin_stream()
        self._observer = self._new_observer()
        self.engine = self._new_engine()
        self._shell = EngineShell(self.engine, self._announce, clock=self._clock, pace=self.pace)
        self._running = self._tasks.start(self._run(self._shell), f"engine of rank {self.number}")

    async def _run(self, shell: EngineShell[EventT]) -> None:
        try:
            await shell.run()
        except Exception as error:
            raise EngineFailedError(f"the engine of rank {self.number} failed: {error}") from error

    @property
    def in_flight(self) -> int:
        """Number of requests that have not ended."""
        return len(self._flights) + len(self._parked)

    @property
    def behind(self) -> float:
        """The longest delay for which later steps did not make up, seconds; 0 for none."""
        self._behind = max(self._behind, self._shell.behind)
        return self._behind

    def load(self) -> Load:
        load = self.engine.load()
        return replace(load, waiting=load.waiting + len(self._parked)) if self._parked else load

    def submit(self, flight: Flight) -> None:
        """Take a request. Raises RequestRefusedError if it can never be served."""
        flight.arrived = self._clock()
        if self.paused:
            self._parked[flight.request_id] = flight
        else:
            self._give(flight)

    def _give(self, flight: Flight) -> None:
        self._shell.submit(flight.begin(lambda tokens, last: self._take(flight, tokens, last)))
        self._flights[flight.request_id] = flight
        self._drained.clear()

    def _take(self, flight: Flight, tokens: list[int], last: bool) -> None:
        if flight.first_token_at is None:
            flight.first_token_at = self._clock()
            waited = flight.first_token_at - flight.arrived
            self._observer.first_token(waited, len(flight.ask.prompt))
        flight.take(tokens)
        self._observer.tokens(len(tokens))
        if last:
            self._end(flight, tokens, "length")
        else:
            flight.sink(tokens, None)

    def _end(self, flight: Flight, tokens: list[int], reason: str) -> None:
        self._forget(flight.request_id)
        self._observer.finished(self._clock() - flight.arrived, reason)
        flight.sink(tokens, reason)

    def _forget(self, request_id: str) -> None:
        self._flights.pop(request_id, None)
        self._parked.pop(request_id, None)
        if not self._flights:
            self._drained.set()

    def abort(self, request_id: str) -> None:
        """Drop a request whose client has left; unknown ones are ignored."""
        if request_id in self._flights:
            self._abort(self._flights[request_id])
        self._forget(request_id)

    def _abort(self, flight: Flight) -> None:
        assert flight.generation is not None
        self.engine.abort(flight.generation.request_id)

    def reset_prefix_cache(
        self, *, reset_running_requests: bool = False, reset_external: bool = False
    ) -> bool:
        """Forget all cached content; False if some was kept, see `Engine.reset_prefix_cache`.

        With `reset_running_requests` running requests give back their blocks and are computed again.
        """
        if not reset_running_requests:
            return self.engine.reset_prefix_cache(reset_external=reset_external)
        flights = self._withdraw()
        forgotten = self.engine.reset_prefix_cache(reset_external=reset_external)
        self._give_again(flights)
        return forgotten

    def _withdraw(self) -> list[Flight]:
        """Take all requests back from the engine; the tokens of a step under way are lost."""
        flights = list(self._flights.values())
        for flight in flights:
            self._abort(flight)
        self._flights.clear()
        self._drained.set()
        return flights

    def pause(self, mode: PauseMode) -> None:
        """Let new requests wait.

        Mode `abort` ends all requests under way, `keep` lets them wait too, `wait` lets them finish.
        """
        self.paused = True
        if mode == "abort":
            for flight in (*self._withdraw(), *self._parked.values()):
                self._end(flight, [], "abort")
        elif mode == "keep":
            kept = {flight.request_id: flight for flight in self._withdraw()}
            self._parked = kept | self._parked

    async def forget(self) -> None:
        """Reset the cache and host memory once no request is under way, unless resumed by then."""
        await self._shell.idle()
        if self.paused:
            self.engine.reset_prefix_cache(reset_external=True)

    def resume(self) -> None:
        """Give the engine the requests that have waited."""
        self.paused = False
        parked, self._parked = self._parked, {}
        self._give_again(parked.values())

    def _give_again(self, flights: Iterable[Flight]) -> None:
        """Give the engine requests again; a refusal now ends them with an error."""
        for flight in flights:
            try:
                self._give(flight)
            except RequestRefusedError as error:
                flight.error = str(error)
                self._end(flight, [], "error")

    async def drained(self) -> None:
        await self._drained.wait()

    def restart(self) -> None:
        """Begin a new life. Requests of the old one are lost without an answer.

        It awaits nothing, so no request can come between two lives and be lost with the old one.
        """
        self._running.cancel()
        self._behind = self.behind
        self._flights.clear()
        self._parked.clear()
        self._drained.set()
        self.paused = False
        self._begin_life()

    def check(self) -> None:
        """Raise BrokenInvariantError if the engine's requests are not those of the rank."""
        load = self.engine.load()
        if load.running + load.waiting != len(self._flights):
            raise BrokenInvariantError(
                f"the engine's load is {load}, but the rank has {len(self._flights)} requests in it"
            )
        if self._drained.is_set() != (not self._flights):
            raise BrokenInvariantError(
                "the rank has requests and is drained, or has none and is not"
            )
        if self._flights.keys() & self._parked.keys():
            raise BrokenInvariantError("a request waits outside and runs inside")


def score(load: Load, in_flight: int) -> float:
    """Return how loaded a rank is: its requests, plus a penalty for waiting ones if its cache is full.

    The penalty rises from nothing at half the cache in use to three times the waiting requests at all of
    it: a queue in front of a full cache drains slowly.
    """
    requests = float(max(in_flight, load.waiting + load.running))
    return requests + load.waiting * 6.0 * max(0.0, load.kv_cache_usage - 0.5)


class Balancer:
    """Picks the least loaded rank; equal ones take turns."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._start = 0

    def choose(self, scores: Sequence[float]) -> int:
        order = [(self._start + step) % self._ranks for step in range(self._ranks)]
        self._start = (self._start + 1) % self._ranks
        return min(order, key=lambda rank: scores[rank])
