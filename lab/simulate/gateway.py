"""The gateway of the simulated traffic: asks routers for pods, sends requests there, and reports.

    arrivals ──► pick of a router ──► engine ──► tokens ──► reports, `report_delay` later
                    │                   ▲                             │
                    └─► queue ──────────┘ ◄───────────────────────────┘

In a closed loop the end of an answer leads to the arrival that follows it (`lab.simulate.closed_loop`).
Where picks wait (`--queue on`), routers are asked for what may go at arrivals, at reports, and when a
router says that it is to be asked again.
"""

import gc
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from random import Random
from zlib import crc32

from warmpath.lab.simulate.autoscaler import SYNC, Autoscaler, requests_a_pod
from warmpath.lab.simulate.booking_store import BookingStore
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.closed_loop import ClosedLoop, LoopRun
from warmpath.lab.simulate.fleet import SimulatedEngine
from warmpath.lab.simulate.router import Pick, SimulatedRouter
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.virtual.cluster import RequestOutcome, VirtualCluster
from warmpath.router.peers.run import INTERVALS


class Gateway:
    """Runs a cell's requests, in the order of their arrival, through its routers and engines.

    With a `loop`, `requests` are the loop's, which arrive as it says. `new_engine` returns an engine
    without content for a pod, by its number.
    """

    def __init__(
        self,
        cell: Cell,
        routers: Sequence[SimulatedRouter],
        engines: MutableSequence[SimulatedEngine],
        requests: Sequence[LoggedRequest],
        new_engine: Callable[[int], SimulatedEngine],
        *,
        loop: ClosedLoop | None = None,
    ) -> None:
        self._cell = cell
        self._routers = routers
        self._engines = engines
        self._requests = requests
        self._new_engine = new_engine
        self._picks: dict[str, tuple[SimulatedRouter, Pick]] = {}
        """Id of a request that was sent -> the router that picked for it, and its pick."""
        chance = Random(f"{cell.seed}/lost")
        self._lost = {
            str(number) for number in range(len(requests)) if chance.random() < cell.lost_reports
        }
        """Ids of the requests whose reports never arrive."""
        self._left = len(requests)
        """Number of requests that have not ended."""
        self._next_looks = [inf] * len(routers)
        """When each router is asked next for what may go."""
        self._lost_prefill = [0.0] * len(engines)
        """Seconds of prefill of each pod's dead engines."""
        self._cluster = VirtualCluster(
            engines, self._ask, on_events=self._take_events, event_delay=cell.event_delay
        )
        self._scaler: Autoscaler | None = None
        if cell.scale:
            self._scaler = Autoscaler(
                cell.pods,
                cell.cold_start,
                metric=self._asked_for,
                is_idle=lambda number: not engines[number].load().running,
                start=self._start,
                end=routers[0].ended,
            )
        self._loop_run = (
            None
            if loop is None
            else LoopRun(loop, self._cluster, lambda number: self._generation(str(number)))
        )

    def run(self, speed: float) -> list[RequestOutcome]:
        """Run all requests; return their outcomes in the order of their arrivals.

        Without a loop they come `speed` times as fast as recorded.
        """
        cluster, cell = self._cluster, self._cell
        if cell.shares_bookings:
            store = BookingStore()
            for number, router in enumerate(self._routers):
                self._share(router, store, Random(f"{cell.seed}/{number}"))
        if cell.outage:
            half = (self._requests[-1].at - self._requests[0].at) / speed / 2
            cluster.call_at(half, self._die)
            cluster.call_at(half + cell.outage, self._begin_anew)
        if self._scaler is not None:
            for number in range(1, cell.pods):
                self._routers[0].ended(number)
            cluster.call_at(0.0, self._look_at_demand)
            cluster.call_at(0.0, self._scale)
        with _uncollected():
            if self._loop_run is None:
                outcomes = cluster.run(self._arrivals(speed))
            else:
                outcomes = self._loop_run.run()
        for engine in self._engines:
            engine.check()
        cluster.check()
        return outcomes

    def _asked_for(self) -> float:
        """Return how many pods the cell's metric asks for."""
        if not (each := requests_a_pod(self._cell.scale)):
            return self._routers[0].pods_needed
        loads = [engine.load() for engine in self._engines]
        return sum(one.running + one.waiting for one in loads) / each

    def _look_at_demand(self) -> None:
        if self._left:
            self._routers[0].look_at_demand(self._cluster.now)
            self._cluster.call_at(self._cluster.now + 1.0, self._look_at_demand)

    def _scale(self) -> None:
        if self._left and self._scaler is not None:
            self._scaler.look(self._cluster.now)
            self._cluster.call_at(self._cluster.now + SYNC, self._scale)

    def _restart(self, number: int) -> list[str]:
        """Give a pod another engine, without content; return the ids of its requests, unsent now."""
        self._lost_prefill[number] += self._engines[number].prefill_seconds
        self._engines[number] = self._new_engine(number)
        return self._cluster.restart(number, self._engines[number])

    def _start(self, number: int) -> None:
        self._restart(number)
        self._routers[0].died(number)
        self._routers[0].began_anew(number)

    @property
    def pod_seconds(self) -> float:
        """The time of pods that were started and ended; 0: all served all the time."""
        return self._scaler.pod_seconds if self._scaler is not None else 0.0

    @property
    def prefill_seconds(self) -> list[float]:
        return [
            lost + engine.prefill_seconds
            for lost, engine in zip(self._lost_prefill, self._engines, strict=True)
        ]

    def _arrivals(self, speed: float) -> Iterator[tuple[float, Generation]]:
        """Yield each request's time, in seconds, and the request."""
        start = self._requests[0].at
        for number, one in enumerate(self._requests):
            yield (one.at - start) / speed, self._generation(str(number))

    def _generation(self, request_id: str) -> Generation:
        one = self._requests[int(request_id)]
        waits = True

        def take(_tokens: list[int], last: bool) -> None:
            nonlocal waits
            if waits:
                waits = False
                self._first_token(request_id)
            if last:
                self._finished(generation)
                # This breaks a reference cycle, which nothing would collect (`_uncollected`).
                generation.on_tokens = _ignore

        generation = Generation(
            request_id,
            range(one.prompt_tokens),
            one.output_tokens,
            take,
            prompt_hashes=one.block_hashes,
            answer_hashes=one.answer_hashes,
        )
        return generation

    def _ask(self, generation: Generation, now: float) -> int | None:
        """Return the pod of a request, None if it waits."""
        request_id = generation.request_id
        one = self._requests[int(request_id)]
        by_session = self._cell.routers_by == "session"
        key = crc32(one.affinity.encode()) if by_session else int(request_id)
        number = key % len(self._routers)
        router = self._routers[number]
        pick = router.ask(request_id, one, now)
        if pick is None:
            self._look_at(number, now)
            return None
        self._picks[request_id] = router, pick
        generation.priority = pick.priority
        return pick.pod

    def _first_token(self, request_id: str) -> None:
        router, pick = self._picks[request_id]
        self._report(request_id, router, partial(router.first_token, pick))

    def _finished(self, generation: Generation) -> None:
        router, pick = self._picks.pop(generation.request_id)
        self._left -= 1
        cached, tokens = generation.num_cached_tokens, generation.num_prompt_tokens
        report = partial(router.finished, pick, cached, tokens)
        self._report(generation.request_id, router, report)
        if self._loop_run is not None:
            self._loop_run.ended(int(generation.request_id))

    def _report(
        self, request_id: str, router: SimulatedRouter, report: Callable[[float], None]
    ) -> None:
        """Let a report reach a router, at once or late, unless it is lost."""
        if request_id in self._lost:
            return
        if not self._cell.report_delay:
            self._hand_in(router, report)
            return
        at = self._cluster.now + self._cell.report_delay
        self._cluster.call_at(at, partial(self._hand_in, router, report))

    def _hand_in(self, router: SimulatedRouter, report: Callable[[float], None]) -> None:
        now = self._cluster.now
        report(now)
        if self._cell.queue:
            self._look_at(self._routers.index(router), now)

    def _look_at(self, number: int, time: float) -> None:
        """Ask a router at `time` for waiting requests that may go, unless it is asked before."""
        if time < self._next_looks[number]:
            self._next_looks[number] = time
            self._cluster.call_at(time, partial(self._look, number, time))

    def _look(self, number: int, time: float) -> None:
        if time != self._next_looks[number]:
            return  # an earlier look has taken this one's place
        self._next_looks[number] = inf
        router, now = self._routers[number], self._cluster.now
        for request_id, pick in router.release(now):
            self._picks[request_id] = router, pick
            generation = self._generation(request_id)
            generation.priority = pick.priority
            self._cluster.send(generation, pick.pod)
        if router.next_at < inf:
            self._look_at(number, max(router.next_at, now))

    def _take_events(self, now: float, number: int, events: Sequence[CacheEvent]) -> None:
        for router in self._routers:
            router.take_events(now, number, events)

    def _die(self) -> None:
        """Let the first pod die; send its requests anew."""
        now = self._cluster.now
        unsent = self._restart(0)
        for router in self._routers:
            router.died(0)
        for request_id in unsent:
            router, pick = self._picks.pop(request_id)
            self._report(request_id, router, partial(router.failed, pick))
        for request_id in unsent:
            generation = self._generation(request_id)
            pod = self._ask(generation, now)
            if pod is not None:
                self._cluster.send(generation, pod)

    def _begin_anew(self) -> None:
        for number, router in enumerate(self._routers):
            router.began_anew(0)
            if self._cell.queue:
                self._look_at(number, self._cluster.now)

    def _share(self, router: SimulatedRouter, store: BookingStore, rng: Random) -> None:
        """Let a router share its bookings, again and again until all requests have ended."""
        if self._left:
            now = self._cluster.now
            router.share(store.run, now)
            again = now + rng.uniform(*INTERVALS)
            self._cluster.call_at(again, partial(self._share, router, store, rng))


def _ignore(_tokens: list[int], _last: bool) -> None:
    pass


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch off garbage collection: a run leaves no cycles, and looking takes a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
