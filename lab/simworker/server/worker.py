"""One worker: ranks behind one HTTP server, with adapters, sleep and faults."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.events.faulty_outlet import EventFaults
from warmpath.lab.simworker.events.publisher import HIGH_WATER_MARK, Publisher
from warmpath.lab.simworker.server.adapters import Adapters
from warmpath.lab.simworker.server.flight import Flight, Sink
from warmpath.lab.simworker.server.metrics import WorkerMetrics
from warmpath.lab.simworker.server.rank import Balancer, Rank, score
from warmpath.lab.simworker.server.sleep_state import PauseMode, SleepState
from warmpath.lab.simworker.server.text import TextCodec


@dataclass(frozen=True, slots=True)
class Identity:
    """The model that a worker serves, with the limits of requests."""

    model: str
    engine: str
    """The engine whose own endpoints it serves: `vllm`, `sglang` or `trtllm`."""
    vocab_size: int
    max_model_len: int
    stream_interval: int
    """Tokens in a chunk of a streamed answer; the first token goes out at once."""
    priorities: bool
    """Whether the scheduler's policy is `priority`."""
    streams: bool = True
    """Whether the engine publishes its events over ZMQ."""


class NoSuchRankError(ValueError):
    """The worker does not have the data-parallel rank."""


class DrainingError(Exception):
    """The worker takes no more requests."""


class Worker:
    """One worker. `ranks` and `publishers` are in rank order."""

    def __init__(
        self,
        identity: Identity,
        text: TextCodec,
        version: str,
        *,
        new_adapters: Callable[[], Adapters],
        new_metrics: Callable[["Worker"], WorkerMetrics],
        build_ranks: Callable[["Worker"], Sequence[Rank[Any]]],
        publishers: Sequence[Publisher],
        reset_connections: Callable[[object], None],
        crash: Callable[[], None],
        start_task: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
    ) -> None:
        """`new_adapters` and `new_metrics` are called once a life, as a restart forgets both."""
        self.identity = identity
        self.text = text
        self.version = version
        self.draining = False
        self.crash = crash
        """Ends the worker at once, without an answer to any request."""
        self._new_adapters = new_adapters
        self._new_metrics = new_metrics
        self._publishers = publishers
        self._reset_connections = reset_connections
        self._start_task = start_task
        self._sleep = SleepState()
        self.adapters = new_adapters()
        self.metrics = new_metrics(self)
        self.ranks = build_ranks(self)
        self._balancer = Balancer(len(self.ranks))
        self._next_id = 0
        self.metrics.watch(self.ranks)

    @property
    def in_flight(self) -> int:
        return sum(rank.in_flight for rank in self.ranks)

    def submit(self, ask: Generation, sink: Sink, rank: int | None) -> Flight:
        """Take a request; if `rank` is None, the least loaded rank gets it.

        Raises RequestRefusedError, NoSuchRankError, DrainingError.
        """
        if self.draining:
            raise DrainingError("the worker is draining and takes no more requests")
        if rank is None:
            rank = self._choose()
        elif not 0 <= rank < len(self.ranks):
            raise NoSuchRankError(
                f"data_parallel_rank {rank} is out of range [0, {len(self.ranks)})."
            )
        self._next_id += 1
        flight = Flight(f"{'lora' if ask.lora_name else 'base'}-{self._next_id}", ask, sink)
        flight.rank = rank
        self.ranks[rank].submit(flight)
        return flight

    def _choose(self) -> int:
        if len(self.ranks) == 1:
            return 0
        return self._balancer.choose([score(rank.load(), rank.in_flight) for rank in self.ranks])

    def abort(self, flight: Flight) -> None:
        self.ranks[flight.rank].abort(flight.request_id)

    def reset_prefix_cache(self, *, reset_running_requests: bool, reset_external: bool) -> bool:
        """Forget every rank's cached content; return whether all ranks could.

        With `reset_external`, content in host memory too.
        """
        done = [
            rank.reset_prefix_cache(
                reset_running_requests=reset_running_requests, reset_external=reset_external
            )
            for rank in self.ranks
        ]
        return all(done)

    @property
    def sleeping(self) -> bool:
        """Whether the worker sleeps, at any level."""
        return self._sleep.level is not None

    @property
    def sleep_level(self) -> int | None:
        """The level of sleep that metrics show; None while awake, and since a part of it woke."""
        return self._sleep.shown

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause every rank at once; from level 1 on, forget their cached content.

        Returns when that is done; it is done even if the caller is cancelled.
        """
        self._sleep.sleep(level)
        for rank in self.ranks:
            rank.pause(mode)
        await asyncio.shield(self._start_task(self._fall_asleep(level), "sleep"))

    async def _fall_asleep(self, level: int) -> None:
        for rank in self.ranks:
            await rank.drained()
            if level:
                await rank.forget()

    def wake(self, tags: Sequence[str] | None) -> bool:
        """Wake the parts that the tags name, or all; return whether requests are computed again."""
        awake = self._sleep.wake(tags)
        if awake:
            for rank in self.ranks:
                rank.resume()
        return awake

    async def drained(self) -> None:
        for rank in self.ranks:
            await rank.drained()

    def event_sources(self) -> dict[str, dict[str, Any]]:
        """Return each rank's publisher with the fields of vLLM's `KVEventsConfig`, if they publish.

        `max_queue_size` is 0, which in Python and vLLM means no limit: no queue holds batches here.
        """
        return {
            str(number): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": publisher.endpoint,
                "replay_endpoint": publisher.replay_endpoint,
                "buffer_steps": publisher.journal.buffer_steps,
                "hwm": HIGH_WATER_MARK,
                "max_queue_size": 0,
                "topic": publisher.topic,
            }
            for number, publisher in enumerate(self._publishers)
            if self.identity.streams
        }

    @property
    def hung(self) -> bool:
        return self.ranks[0].pace.hung

    def hang(self, hung: bool) -> None:
        """Keep every engine's step from ending, or let it end."""
        for rank in self.ranks:
            rank.pace.hang(hung)

    @property
    def slowness(self) -> float:
        """The factor by which steps take longer."""
        return self.ranks[0].pace.factor

    def slow_down(self, factor: float) -> None:
        """Make steps take `factor` times as long as modelled."""
        for rank in self.ranks:
            rank.pace.factor = factor

    @property
    def event_faults(self) -> EventFaults:
        return self._publishers[0].outlet.faults

    def spoil_events(self, faults: EventFaults) -> None:
        for publisher in self._publishers:
            publisher.outlet.configure(faults)

    def faults(self) -> dict[str, Any]:
        """Return the present faults, and each rank's counts of batches with a fault in this life."""
        faults = self.event_faults
        return {
            "hang": self.hung,
            "slow": self.slowness,
            "events": {name: getattr(faults, name) for name in EventFaults.__slots__},
            "batches": [publisher.outlet.counts for publisher in self._publishers],
        }

    def restart(self, spare: object = None) -> None:
        """Begin a new life: connections reset, caches empty, events numbered from 0 again.

        Faults of events and of pace stay; a hang ends. The transport `spare` is not reset.
        """
        self._reset_connections(spare)
        self.hang(False)
        self.draining = False
        self._sleep = SleepState()
        self.adapters = self._new_adapters()
        self.metrics = self._new_metrics(self)
        for rank in self.ranks:
            rank.restart()
        self.metrics.watch(self.ranks)
