"""Runs a cell: the same cell and traffic always give the same figures, except `seconds`.

Arrivals are sped up until the traffic has the cell's load: the seconds of prefill that it takes
with one LRU cache as large as all pods' together, divided by pods x time (`shared/bench/sim.py`).
Decoding is not counted, so at a load of 1 the traffic takes more time than the pods have.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from indexer.embedded import embedded_index
from indexer.index.contract import Index
from router.commands.simulate.access_log import LoggedRequest, Traffic, read_traffic
from router.commands.simulate.cell import Cell
from router.commands.simulate.figures import Figures, figures
from router.commands.simulate.fleet import FleetSettings, build_fleet
from router.commands.simulate.router import SimulatedRouter
from router.commands.simulate.study import variant
from router.commands.simulate.traffic import Generated
from scorer.prefill import PrefillModel
from simworker.engine import Generation
from simworker.latency import LatencyModel, StepWork
from simworker.presets import PRESETS
from simworker.virtual import trace
from simworker.virtual.cluster import VirtualCluster
from simworker.virtual.trace import TraceLine, spread

INDEX_BYTES = 64 << 20


def run(cell: Cell) -> Figures:
    """Run a cell. Raises OSError, and ValueError for bad settings or lines of the trace."""
    begun = time.perf_counter()
    cell.check()
    traffic = _traffic(cell.trace, cell.requests)
    latency = PRESETS[cell.preset].latency
    chosen = variant(cell.policy)
    fleet = FleetSettings(
        cell.engine,
        cell.pods,
        cell.blocks_per_pod,
        traffic.block_size,
        latency,
        slow_factor=cell.slow_factor,
        is_pooled=chosen.is_pooled,
    )
    servable = [one for one in traffic.requests if fleet.can_serve(one)]
    if not servable:
        raise ValueError(f"--blocks-per-pod is {cell.blocks_per_pod}: no request of the trace fits")
    if not cell.raw_bursts:
        servable = _spread(servable)
    ceiling, speed = _speed(cell, traffic.block_size, servable, latency)
    engines = build_fleet(fleet, max(one.prompt_tokens + one.output_tokens for one in servable))
    eventless = round(cell.no_events_share * cell.pods)
    router = SimulatedRouter(
        chosen,
        engines,
        _new_index,
        blocks=cell.blocks_per_pod,
        block_size=traffic.block_size,
        counts_last_block=cell.engine == "serial",
        estimate=_estimate(latency, cell.estimate_factor),
        eventless=frozenset(range(cell.pods - eventless, cell.pods)),
        scrape=cell.scrape,
        reports=cell.reports,
        seed=cell.seed,
    )
    placing = _Placing(router, servable)
    cluster = VirtualCluster(
        engines, placing.route, on_events=router.take_events, event_delay=cell.event_delay
    )
    placing.clock = lambda: cluster.now
    with _uncollected():
        outcomes = cluster.run(placing.arrivals(speed))
    for engine in engines:
        engine.check()
    cluster.check()
    router.check()
    return figures(
        cell,
        outcomes,
        refused=len(traffic.requests) - len(servable),
        ceiling=ceiling,
        speed=speed,
        busy=[engine.prefill_seconds for engine in engines],
        begun=begun,
    )


@lru_cache(maxsize=2)
def _traffic(source: Path | Generated, requests: int) -> Traffic:
    if isinstance(source, Generated):
        return source.traffic(requests)
    return read_traffic(source, requests)


def _new_index() -> Index:
    return embedded_index(INDEX_BYTES)


def _estimate(latency: LatencyModel, factor: float) -> PrefillModel:
    """Return the router's model of prefill times: the engines' own, multiplied by `factor`."""
    return PrefillModel(latency.base * factor, latency.prefill * factor, latency.context * factor)


def _spread(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Spread requests of one time stamp up to the next stamp, as `virtual.trace` does."""
    lines = spread([TraceLine(one.at, 1, 1, ()) for one in requests])
    return [replace(one, at=line.arrival) for one, line in zip(requests, lines, strict=True)]


def _speed(
    cell: Cell, block_size: int, requests: Sequence[LoggedRequest], latency: LatencyModel
) -> tuple[float, float]:
    """Return the ceiling of the hit ratio, and how many times faster the requests must come."""
    ceiling, work = pooled(requests, cell.pods * cell.blocks_per_pod, block_size, latency)
    span = requests[-1].at - requests[0].at
    if not span > 0:
        source = cell.trace.name if isinstance(cell.trace, Generated) else cell.trace
        raise ValueError(
            f"{source}: timestamp: it is the same in all requests that fit ({len(requests)}), so "
            "they have no speed; two that differ are needed"
        )
    # A pod that takes twice as long has half the capacity.
    slow = cell.pods // 2
    return ceiling, cell.load * (cell.pods - slow + slow / cell.slow_factor) * span / work


def pooled(
    requests: Sequence[LoggedRequest], capacity: int, block_size: int, latency: LatencyModel
) -> tuple[float, float]:
    """Return the token hit ratio and the seconds of prefill of all requests with one LRU cache.

    The cache holds `capacity` blocks and is fed in the order of arrival. No router can find much more
    cached.
    """
    found, work = trace.pooled(
        ((one.keys, one.prompt_tokens) for one in requests),
        capacity,
        block_size,
        lambda new, before: latency.step(StepWork([(new, before)])),
    )
    return found / sum(one.prompt_tokens for one in requests), work


class _Placing:
    """Sends requests to the router and reports their first tokens and ends, as a gateway does."""

    def __init__(self, router: SimulatedRouter, requests: Sequence[LoggedRequest]) -> None:
        self._router = router
        self._requests = requests
        self.clock: Callable[[], float] = float
        """Returns the cluster's time."""

    def route(self, generation: Generation, now: float) -> int:
        """Return the pod of a request."""
        return self._router.place(
            generation.request_id, self._requests[int(generation.request_id)], now
        )

    def arrivals(self, speed: float) -> Iterator[tuple[float, Generation]]:
        """Yield each request's time, in seconds, and the request."""
        start = self._requests[0].at
        for number, one in enumerate(self._requests):
            yield (one.at - start) / speed, self._generation(str(number), one)

    def _generation(self, request_id: str, one: LoggedRequest) -> Generation:
        waits = True

        def hear(_tokens: list[int], last: bool) -> None:
            nonlocal waits
            if waits:
                waits = False
                self._router.first_token(request_id, self.clock())
            if last:
                self._router.finished(
                    request_id, generation.num_cached_tokens, one.prompt_tokens, self.clock()
                )
                # This breaks a reference cycle, which nothing would collect (`_uncollected`).
                generation.on_tokens = _ignore

        generation = Generation(
            request_id,
            range(one.prompt_tokens),
            one.output_tokens,
            hear,
            prompt_hashes=one.block_hashes,
        )
        return generation


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
