"""Runs a cell: the same cell and traffic always give the same figures, except `seconds`.

Arrivals are sped up until the traffic has the cell's load: the seconds of prefill that it takes
with one LRU cache as large as all pods' together, divided by pods x time.
Decoding is not counted, so at a load of 1 the traffic takes more time than the pods have.
A closed loop has no such pace: its requests come when answers have ended, and its load is what came.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count, groupby, takewhile
from math import pi, sin
from operator import attrgetter
from pathlib import Path
from random import Random

from warmpath.lab.simulate.alone import alone
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.closed_loop import ClosedLoop
from warmpath.lab.simulate.figures import Figures, Pace, figures
from warmpath.lab.simulate.fleet import build_engine, build_fleet, can_serve
from warmpath.lab.simulate.gateway import Gateway
from warmpath.lab.simulate.router import SimulatedRouter
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.lab.simulate.traffic.generated import Generated
from warmpath.lab.simulate.traffic.requests import LoggedRequest, LoggedTraffic, chained
from warmpath.lab.simulate.traffic.sessions import Session, sessions_of
from warmpath.lab.simworker.latency import LatencyModel, StepWork


def run(cell: Cell) -> Figures:
    """Run a cell. Raises OSError, and ValueError for bad settings or lines of the trace."""
    begun = time.perf_counter()
    cell.check()
    traffic = _traffic(cell.trace, 0 if cell.is_closed else cell.requests)
    if traffic.is_closed and not cell.is_closed:
        raise ValueError(
            f"{cell.trace}: sessions have no times of their own; --sessions N runs N at once, each "
            "request after the answer before it"
        )
    return _closed(cell, traffic, begun) if cell.is_closed else _open(cell, traffic, begun)


def _open(cell: Cell, traffic: LoggedTraffic, begun: float) -> Figures:
    size, blocks = traffic.block_size, cell.blocks_per_pod
    servable = [one for one in traffic.requests if can_serve(one, size, blocks)]
    if not servable:
        raise ValueError(f"--blocks-per-pod is {blocks}: no request of the trace fits")
    if not cell.raw_bursts:
        servable = spread(servable)
    servable = waved(servable, cell.wave)
    pace = _pace(cell, size, servable)
    gateway = _gateway(cell, size, servable)
    outcomes = gateway.run(pace.speed)
    refused = len(traffic.requests) - len(servable)
    busy = gateway.prefill_seconds
    return figures(
        cell, traffic, pace, outcomes, refused=refused, busy=busy, begun=begun,
        pod_seconds=gateway.pod_seconds,
    )  # fmt: skip


def _gateway(
    cell: Cell, size: int, requests: Sequence[LoggedRequest], loop: ClosedLoop | None = None
) -> Gateway:
    longest = longest_of(requests)
    engines = build_fleet(cell, size, longest)
    routers = [SimulatedRouter(cell, engines, size, number) for number in range(cell.routers)]
    return Gateway(
        cell, routers, engines, requests, partial(build_engine, cell, size, longest), loop=loop
    )


def longest_of(requests: Iterable[LoggedRequest]) -> int:
    """Return the most tokens of a prompt with its answer."""
    return max(one.prompt_tokens + one.output_tokens for one in requests)


def _closed(cell: Cell, traffic: LoggedTraffic, begun: float) -> Figures:
    size = traffic.block_size
    fitting = _fitting(cell, size)
    if not fitting:
        raise ValueError(
            f"--blocks-per-pod is {cell.blocks_per_pod}: no session's first prompt fits"
        )
    tokens = sum(one.prompt_tokens for own in fitting for of in own.threads for one in of.requests)
    loop = ClosedLoop(
        fitting,
        at_once=cell.sessions,
        rate=cell.session_rate,
        beside=[*_beside(cell, size, tokens)],
        rng=Random(f"{cell.seed}/sessions"),
    )
    gateway = _gateway(cell, size, loop.requests, loop)
    outcomes = gateway.run(1.0)
    came = [loop.requests[int(one.request_id)] for one in outcomes]
    ceiling, work = pooled(came, cell.pods * cell.blocks_per_pod, size, cell.latency)
    pace = Pace(ceiling, work / (_capacity(cell) * max(one.end for one in outcomes)), 1.0)
    # Neither the policy nor the pace matters to a session alone: all runs of a place share its times.
    by_themselves = _by_themselves(
        replace(cell, policy="", queue=False, sessions=1, session_rate=0.0, beside=""), size
    )
    slowed = [
        (ended - begun) / by_itself
        for (_, (begun, ended)), by_itself in zip(
            sorted(loop.took.items()), by_themselves, strict=True
        )
    ]
    refused = sum(one.count for one in _chosen(cell)) - loop.of_sessions
    return figures(
        cell, traffic, pace, outcomes, refused=refused, busy=gateway.prefill_seconds,
        begun=begun, slowed=slowed, of_sessions=loop.of_sessions, pod_seconds=gateway.pod_seconds,
    )  # fmt: skip


def _beside(cell: Cell, size: int, tokens: int) -> Iterator[LoggedRequest]:
    """Yield requests of `cell.beside` that fit into a pod, until they have so many tokens.

    They come in rounds, each with blocks of its own.
    """
    if not cell.beside:
        return
    traffic = _traffic(Path(cell.beside), 0)
    whole, rest = divmod(traffic.block_size, size)
    servable = [
        one
        for one in traffic.requests
        if can_serve(one, traffic.block_size, cell.blocks_per_pod // whole)
    ]
    if rest or not servable:
        raise ValueError(
            f"{cell.beside}: no request fits, or its blocks are no multiple of {size} tokens"
        )
    for number in count():
        nth, at = divmod(number, len(servable))
        one = servable[at]
        if tokens <= 0:
            return
        tokens -= one.prompt_tokens
        names = [f"{nth}/{part}" for part in range(whole)]
        keys = [key for root in one.keys for key in chained(root, names)]
        yield replace(one, keys=tuple(keys[: -(-one.prompt_tokens // size)]))


def _fitting(cell: Cell, size: int) -> list[Session]:
    """Return the chosen sessions, as far as their prompts fit into a pod."""
    chosen = _chosen(cell)
    return [found for one in chosen if (found := _that_fit(one, size, cell.blocks_per_pod))]


@lru_cache(maxsize=4)
def _by_themselves(cell: Cell, size: int) -> list[float]:
    sessions = _fitting(cell, size)
    requests = (one for of in sessions for thread in of.threads for one in thread.requests)
    return alone(cell, sessions, size, longest_of(requests))


def _chosen(cell: Cell) -> Iterator[Session]:
    """Yield sessions in an order by the seed, until they have as many requests as the cell."""
    sessions = _sessions(cell.trace, cell.longest_pause)
    if not cell.has_agents:
        sessions = [replace(one, threads=one.threads[:1]) for one in sessions]
    count = 0
    for one in Random(f"{cell.seed}/order").sample(sessions, len(sessions)):
        if cell.requests and count >= cell.requests:
            return
        count += one.count
        yield one


def _that_fit(session: Session, size: int, blocks: int) -> Session | None:
    """Return a session with its threads up to prompts that fit into no pod; None if nothing is left."""
    own, *others = (
        replace(one, requests=[*takewhile(lambda one: can_serve(one, size, blocks), one.requests)])
        for one in session.threads
    )
    if not own.requests:
        return None
    beside = [one for one in others if one.requests and one.follows < len(own.requests)]
    return replace(session, threads=[own, *beside])


@lru_cache(maxsize=2)
def _traffic(source: Path | Generated, requests: int) -> LoggedTraffic:
    if isinstance(source, Generated):
        return source.traffic(requests)
    return read_traffic(source, requests)


@lru_cache(maxsize=2)
def _sessions(source: Path | Generated, longest_pause: float) -> list[Session]:
    traffic = _traffic(source, 0)
    try:
        return sessions_of(traffic.requests, traffic.block_size, longest_pause)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def spread(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Spread requests of one time stamp evenly up to the next; the last stamp's over a second."""
    groups = [list(group) for _, group in groupby(requests, attrgetter("at"))]
    found = []
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        at = group[0].at
        gap = (following[0].at - at if following else 1.0) / len(group)
        found += [replace(one, at=at + gap * number) for number, one in enumerate(group)]
    return found


def waved(requests: Sequence[LoggedRequest], depth: float) -> list[LoggedRequest]:
    """Move requests: their rate goes once from 1 - `depth` to 1 + `depth` times its mean, and back."""
    begin, span = requests[0].at, requests[-1].at - requests[0].at

    def moved(at: float) -> float:
        share = (at - begin) / span
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            if middle - depth * sin(2 * pi * middle) / (2 * pi) < share:
                low = middle
            else:
                high = middle
        return begin + low * span

    return [replace(one, at=moved(one.at)) for one in requests] if depth and span else [*requests]


def _pace(cell: Cell, block_size: int, requests: Sequence[LoggedRequest]) -> Pace:
    ceiling, work = pooled(requests, cell.pods * cell.blocks_per_pod, block_size, cell.latency)
    span = requests[-1].at - requests[0].at
    if not span > 0:
        source = cell.trace.name if isinstance(cell.trace, Generated) else cell.trace
        raise ValueError(
            f"{source}: timestamp: it is the same in all requests that fit ({len(requests)}), so "
            "they have no speed; two that differ are needed"
        )
    loads = work / (_capacity(cell) * span)
    speed = cell.speed or cell.load / loads
    return Pace(ceiling, loads * speed, speed)


def _capacity(cell: Cell) -> float:
    """Return how many usual pods the fleet is worth: one that takes twice as long is a half."""
    return sum(1 / factor for factor in cell.factors) if cell.factors else cell.pods


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
