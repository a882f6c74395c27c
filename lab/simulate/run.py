"""Runs a cell: the same cell and traffic always give the same figures, except `seconds`.

Arrivals are sped up until the traffic has the cell's load: the seconds of prefill that it takes
with one LRU cache as large as all pods' together, divided by pods x time.
Decoding is not counted, so at a load of 1 the traffic takes more time than the pods have.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.figures import Figures, Pace, figures
from warmpath.lab.simulate.fleet import build_engine, build_fleet, can_serve
from warmpath.lab.simulate.gateway import Gateway
from warmpath.lab.simulate.router import SimulatedRouter
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.lab.simulate.traffic.generated import Generated
from warmpath.lab.simulate.traffic.requests import LoggedRequest, LoggedTraffic
from warmpath.lab.simworker.latency import LatencyModel, StepWork


def run(cell: Cell) -> Figures:
    """Run a cell. Raises OSError, and ValueError for bad settings or lines of the trace."""
    begun = time.perf_counter()
    cell.check()
    traffic = _traffic(cell.trace, cell.requests)
    size, blocks = traffic.block_size, cell.blocks_per_pod
    servable = [one for one in traffic.requests if can_serve(one, size, blocks)]
    if not servable:
        raise ValueError(f"--blocks-per-pod is {blocks}: no request of the trace fits")
    if not cell.raw_bursts:
        servable = spread(servable)
    pace = _pace(cell, size, servable)
    longest = max(one.prompt_tokens + one.output_tokens for one in servable)
    engines = build_fleet(cell, size, longest)
    routers = [SimulatedRouter(cell, engines, size, number) for number in range(cell.routers)]
    new_engine = partial(build_engine, cell, size, longest)
    gateway = Gateway(cell, routers, engines, servable, new_engine)
    outcomes = gateway.run(pace.speed)
    refused = len(traffic.requests) - len(servable)
    busy = gateway.prefill_seconds
    return figures(cell, traffic, pace, outcomes, refused=refused, busy=busy, begun=begun)


@lru_cache(maxsize=2)
def _traffic(source: Path | Generated, requests: int) -> LoggedTraffic:
    if isinstance(source, Generated):
        return source.traffic(requests)
    return read_traffic(source, requests)


def spread(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Spread requests of one time stamp evenly up to the next; the last stamp's over a second."""
    groups = [list(group) for _, group in groupby(requests, attrgetter("at"))]
    found = []
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        at = group[0].at
        gap = (following[0].at - at if following else 1.0) / len(group)
        found += [replace(one, at=at + gap * number) for number, one in enumerate(group)]
    return found


def _pace(cell: Cell, block_size: int, requests: Sequence[LoggedRequest]) -> Pace:
    ceiling, work = pooled(requests, cell.pods * cell.blocks_per_pod, block_size, cell.latency)
    span = requests[-1].at - requests[0].at
    if not span > 0:
        source = cell.trace.name if isinstance(cell.trace, Generated) else cell.trace
        raise ValueError(
            f"{source}: timestamp: it is the same in all requests that fit ({len(requests)}), so "
            "they have no speed; two that differ are needed"
        )
    # A pod that takes twice as long has half the capacity.
    capacity = sum(1 / factor for factor in cell.factors) if cell.factors else cell.pods
    loads = work / (capacity * span)
    speed = cell.speed or cell.load / loads
    return Pace(ceiling, loads * speed, speed)


def pooled(
    requests: Iterable[LoggedRequest], capacity: int, block_size: int, latency: LatencyModel
) -> tuple[float, float]:
    """Return the token hit ratio and the seconds of prefill of all requests with one LRU cache.

    The cache holds `capacity` blocks and is fed in the order of arrival. No router can find much more
    cached. The policy study measures loads by these seconds.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    found = total = 0
    work = 0.0
    for one in requests:
        hits = next((at for at, key in enumerate(one.keys) if key not in cache), len(one.keys))
        cached = min(hits * block_size, one.prompt_tokens - 1)
        found += cached
        total += one.prompt_tokens
        work += latency.step(StepWork([(one.prompt_tokens - cached, cached)]))
        for key in reversed(one.keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found / total, work
