"""Many workers on one virtual clock, in one process.

Time jumps from one arrival, end of a step or delivery of events to the next. The same requests, routed
the same way, have the same outcome to the last event.

    arrivals ──► route ──► engine of a worker ──► end of each step ──► events, `event_delay` later
                   ▲                                                            │
                   └───────────── the state that `on_events` keeps ◄────────────┘

At one moment, arrivals and aborts come first, then ends of steps, then deliveries, then what was asked
for with `call_at`. A request that arrives at the moment a step ends is in the next step.

`route` may leave a request unsent (None), for `send` later. A worker may die and begin anew (`restart`):
its requests are unsent again.

Engines may take many equal steps as one (the `horizon` of `Engine.begin_step`). An engine that can end
such a leap early (`LeapingEngine`) gets an infinite horizon, and its leap is cut when a request comes or
is aborted; other engines get the time to the next arrival or abort.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Engine,
    Generation,
    RequestRefusedError,
)

EventT = TypeVar("EventT")

Route = Callable[[Generation, float], int | None]
"""Takes a request and the time, returns the number of the worker that serves it.

None leaves it unsent; `VirtualCluster.send` sends it."""

NOBODY = -1
"""The number of the worker of a request that is unsent."""

_ARRIVAL, _STEP_END, _DELIVERY, _CALL = range(4)


@runtime_checkable
class LeapingEngine(Protocol):
    """An engine that can cut short the steps that it takes as one."""

    def cut_step(self, elapsed: float) -> float:
        """Shorten the steps begun to those up to the first that ends `elapsed` seconds in, or later.

        Returns the seconds from the beginning to that end.
        """


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of one request. Times are seconds of the clock."""

    request_id: str
    worker: int
    """The number of its worker; NOBODY while it is unsent."""
    arrival: float
    num_prompt_tokens: int
    num_cached_tokens: int = -1
    """Prompt tokens found cached when it was first scheduled; -1 before its first token."""
    num_output_tokens: int = 0
    num_preemptions: int = 0
    first_token: float = -1.0
    """Time of its first token; -1 before."""
    end: float = -1.0
    """Time of its last token or its abort; -1 before."""
    refused: str = ""
    """The reason, if the engine refused it."""

    @property
    def ttft(self) -> float:
        """Seconds to its first token."""
        return self.first_token - self.arrival


@dataclass(slots=True)
class _Worker(Generic[EventT]):
    engine: Engine[EventT]
    cut_step: Callable[[float], float] | None
    begin: float = 0.0
    """Beginning of the step under way, or of the last one."""
    end: float = inf
    """End of the step under way; infinite while there is none."""
    version: int = 0
    """Grows whenever `end` changes: ends in the queue with an older version do not count."""


class VirtualCluster(Generic[EventT]):
    """Workers, and their requests.

    `on_events` takes the time, a worker's number and its cache's events, `event_delay` seconds after the
    end of the step in which they happened. Raises ValueError without workers, and for a delay below 0.
    """

    def __init__(
        self,
        engines: Sequence[Engine[EventT]],
        route: Route,
        *,
        on_events: Callable[[float, int, Sequence[EventT]], None] | None = None,
        event_delay: float = 0.0,
    ) -> None:
        if not engines:
            raise ValueError("engines: at least 1 is needed")
        if event_delay < 0:
            raise ValueError(f"event_delay is {event_delay} s, less than 0")
        self.now = 0.0
        self.steps = 0
        """Number of steps ended so far; a leap counts as one."""
        self._workers = [_Worker(engine, _cut_of(engine)) for engine in engines]
        self._route = route
        self._on_events = on_events
        self._event_delay = event_delay
        self._open: dict[str, RequestOutcome] = {}
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._numbers = count()
        self._next_arrival = inf

    def abort_at(self, time: float, request_id: str) -> None:
        """Abort a request at a future time; unknown ones are ignored. Raises ValueError for the past."""
        if time < self.now:
            raise ValueError(f"time is {time}, before {self.now}")
        self._push(time, _ARRIVAL, 0, request_id)

    def call_at(self, time: float, do: Callable[[], None]) -> None:
        """Call a function at a time from now on, after all else then. Raises ValueError for the past."""
        if time < self.now:
            raise ValueError(f"time is {time}, before {self.now}")
        self._push(time, _CALL, 0, do)

    def send(self, generation: Generation, number: int) -> None:
        """Send an unsent request to a worker. Raises ValueError for another request.

        Call it neither from `Generation.on_tokens` nor from `on_events`, while a step ends.
        """
        outcome = self._open.get(generation.request_id)
        if outcome is None or outcome.worker != NOBODY:
            raise ValueError(f"{generation.request_id} is not an unsent request")
        self._send(outcome, generation, number)

    def restart(self, number: int, engine: Engine[EventT]) -> list[str]:
        """Let a worker die and begin anew with another engine; return the ids of its requests.

        Its events on their way are lost. The requests are unsent, and tokens that they got do not count;
        to `send` one of them again takes another Generation.
        """
        worker = self._workers[number]
        worker.engine, worker.cut_step = engine, _cut_of(engine)
        worker.end = inf
        worker.version += 1
        unsent = [name for name, outcome in self._open.items() if outcome.worker == number]
        for name in unsent:
            outcome = self._open[name]
            outcome.worker, outcome.first_token = NOBODY, -1.0
            outcome.num_cached_tokens, outcome.num_output_tokens = -1, 0
        return unsent

    def run(self, arrivals: Iterable[tuple[float, Generation]]) -> list[RequestOutcome]:
        """Submit requests at their times, in order, and run until all have ended.

        Returns their outcomes in the order of `arrivals`. `Generation.on_tokens` is called as usual.
        Raises ValueError for a time before that of the request before.
        """
        outcomes = []
        for time, generation in arrivals:
            if time < self.now:
                raise ValueError(f"{generation.request_id} arrives at {time}, before {self.now}")
            self._next_arrival = time
            self._run_until(time)
            self.now = time
            outcomes.append(self.arrive(generation))
        self._next_arrival = inf
        self._run_until(inf)
        return outcomes

    def _push(self, time: float, kind: int, worker: int, what: object) -> None:
        heapq.heappush(self._heap, (time, kind, next(self._numbers), worker, what))

    def _run_until(self, time: float) -> None:
        """Process every event of the clock that comes before arrivals at `time`."""
        heap = self._heap
        limit = (time, _ARRIVAL)
        while heap and heap[0][:2] < limit:
            self.now, kind, _, number, what = heapq.heappop(heap)
            if kind == _STEP_END:
                if what == self._workers[number].version:
                    self._end_step(number)
            elif kind == _DELIVERY:
                self._deliver(number, *what)
            elif kind == _CALL:
                what()
            else:
                self._abort(what)

    def arrive(self, generation: Generation) -> RequestOutcome:
        """Let a request arrive now; return its outcome, which is complete once it has ended.

        Call it only from functions that `call_at` calls: `run` itself lets `arrivals` arrive.
        """
        outcome = RequestOutcome(
            generation.request_id, NOBODY, self.now, generation.num_prompt_tokens
        )
        self._open[generation.request_id] = outcome
        number = self._route(generation, self.now)
        if number is not None:
            self._send(outcome, generation, number)
        return outcome

    def _send(self, outcome: RequestOutcome, generation: Generation, number: int) -> None:
        outcome.worker = number
        worker = self._workers[number]
        self._cut(number)
        on_tokens = generation.on_tokens

        def take(tokens: list[int], last: bool) -> None:
            if outcome.first_token < 0:
                outcome.first_token = self.now
                outcome.num_cached_tokens = generation.num_cached_tokens
            outcome.num_output_tokens += len(tokens)
            if last:
                self._close(outcome, generation)
            on_tokens(tokens, last)

        generation.on_tokens = take
        try:
            worker.engine.submit(generation)
        except RequestRefusedError as error:
            outcome.refused = str(error)
            del self._open[generation.request_id]
            return
        if worker.end == inf:
            self._begin_step(number)

    def _close(self, outcome: RequestOutcome, generation: Generation) -> None:
        outcome.end = self.now
        outcome.num_preemptions = generation.num_preemptions
        del self._open[outcome.request_id]

    def _abort(self, request_id: str) -> None:
        outcome = self._open.pop(request_id, None)
        if outcome is None:
            return
        if outcome.worker != NOBODY:
            self._cut(outcome.worker)
            self._workers[outcome.worker].engine.abort(request_id)
        outcome.end = self.now

    def _begin_step(self, number: int) -> None:
        worker = self._workers[number]
        worker.begin = self.now
        # An engine that cannot be cut must not leap beyond a pending abort.
        horizon = inf if worker.cut_step else self._quiet_time()
        self._set_end(number, self.now + worker.engine.begin_step(horizon))

    def _quiet_time(self) -> float:
        aborts = (entry[0] for entry in self._heap if entry[1] == _ARRIVAL)
        return min(self._next_arrival, *aborts, inf) - self.now

    def _set_end(self, number: int, end: float) -> None:
        worker = self._workers[number]
        worker.end = end
        worker.version += 1
        self._push(end, _STEP_END, number, worker.version)

    def _cut(self, number: int) -> None:
        """End a worker's leap with its current step."""
        worker = self._workers[number]
        if worker.cut_step is not None and worker.end < inf:
            end = worker.begin + worker.cut_step(self.now - worker.begin)
            if end < worker.end:
                self._set_end(number, max(end, self.now))

    def _end_step(self, number: int) -> None:
        worker = self._workers[number]
        self.steps += 1
        events = worker.engine.end_step()
        if events and self._on_events is not None:
            if self._event_delay:
                told = (worker.engine, events)
                self._push(self.now + self._event_delay, _DELIVERY, number, told)
            else:
                self._on_events(self.now, number, events)
        if worker.engine.busy:
            self._begin_step(number)
        else:
            worker.end = inf
            worker.version += 1

    def _deliver(self, number: int, engine: Engine[EventT], events: Sequence[EventT]) -> None:
        if self._on_events is not None and engine is self._workers[number].engine:
            self._on_events(self.now, number, events)

    def check(self) -> None:
        """Raise BrokenInvariantError if workers, their requests and steps contradict each other."""
        waiting = {outcome.worker for outcome in self._open.values()}
        for number, worker in enumerate(self._workers):
            under_way = worker.end < inf
            if under_way != worker.engine.busy:
                raise BrokenInvariantError(
                    f"worker {number} has work and no step under way, or the reverse"
                )
            if number in waiting and not under_way:
                raise BrokenInvariantError(f"worker {number} forgot its requests")
            if under_way and worker.end < self.now:
                raise BrokenInvariantError(f"worker {number}'s step ended unnoticed")


def _cut_of(engine: Engine[EventT]) -> Callable[[float], float] | None:
    return engine.cut_step if isinstance(engine, LeapingEngine) else None
