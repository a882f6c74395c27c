"""One run: one policy, one fleet, one load. The same cell of the same traffic has the same figures.

Arrivals are sped up to the load asked for: the seconds of prefill that the traffic takes with one LRU
cache as large as all pods' together, divided by pods x time, as in `shared/bench/sim.py`. Decoding comes
on top of it, so a load of 1 is more than there is.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from indexer.embedded import embedded_index
from indexer.index.contract import Index
from router.commands.simulate.access_log import LoggedRequest, Traffic, read_traffic
from router.commands.simulate.fleet import EngineKind, FleetSettings, build_fleet
from router.commands.simulate.router import Reports, SimulatedRouter
from router.commands.simulate.study import variant
from router.commands.simulate.traffic import Generated
from scorer.prefill import PrefillModel
from simworker.engine import Generation
from simworker.latency import LatencyModel, StepWork
from simworker.presets import DEFAULT_PRESET, PRESETS
from simworker.virtual import trace
from simworker.virtual.cluster import Outcome, VirtualCluster
from simworker.virtual.trace import TraceLine, spread

INDEX_BYTES = 64 << 20
MOST_PODS = 1024
CURVE = 200
"""Points of a curve of quantiles."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is run. Seconds."""

    trace: Path | Generated
    policy: str
    """A variant (`router.commands.simulate.study`)."""
    pods: int
    blocks_per_pod: int
    load: float
    requests: int = 0
    """The first so many; 0: all of a file, 6,000 of generated ones."""
    seed: int = 1
    engine: EngineKind = "serial"
    preset: str = DEFAULT_PRESET
    event_delay: float = 0.05
    scrape: float = 0.05
    no_events_share: float = 0.0
    estimate_factor: float = 1.0
    slow_factor: float = 1.0
    reports: Reports = "all"
    raw_bursts: bool = False

    def check(self) -> None:
        """Raise ValueError, naming the option and its limit, for what makes no sense."""
        for name, value, lowest in (
            ("--pods", self.pods, 1),
            ("--blocks-per-pod", self.blocks_per_pod, 1),
            ("--requests", self.requests, 0),
            ("--event-delay", self.event_delay, 0.0),
            ("--scrape", self.scrape, 0.0),
        ):
            if not value >= lowest:
                raise ValueError(f"{name} is {value}, less than {lowest}")
        if self.pods > MOST_PODS:
            raise ValueError(f"--pods is {self.pods}, more than {MOST_PODS}")
        for name, factor in (
            ("--load", self.load),
            ("--estimate-factor", self.estimate_factor),
            ("--slow-factor", self.slow_factor),
        ):
            if not 0 < factor <= 1000:
                raise ValueError(f"{name} is {factor}, not above 0 and at most 1000")
        if not 0 <= self.no_events_share <= 1:
            raise ValueError(f"--no-events-share is {self.no_events_share}, not 0 to 1")
        if self.preset not in PRESETS:
            raise ValueError(f"--preset is {self.preset}; known: {', '.join(PRESETS)}")
        if variant(self.policy).is_pooled and self.engine != "serial":
            raise ValueError("--policy pooled: only engine serial can share a cache")


@dataclass(frozen=True, slots=True)
class Figures:
    """What came out. Times are modelled ones but for `seconds`."""

    trace: str
    policy: str
    pods: int
    blocks_per_pod: int
    load: float
    engine: str
    seed: int
    requests: int
    """Served."""
    refused: int
    """That fit into no empty pod; they are in no other figure."""
    token_hit_ratio: float
    """Prompt tokens that engines found cached, of all."""
    ceiling: float
    """The same of one LRU cache as large as all together."""
    hit_share: float
    """The first as a share of the second; 1 where that is 0."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p90_ms: float
    """Of a further token of an answer."""
    e2e_p90_s: float
    output_tokens_per_s: float
    imbalance: float
    """Seconds of prefill of the busiest pod over the mean."""
    utilisation: float
    """The share of time in which pods compute prompts, the mean of all."""
    makespan_s: float
    speed: float
    """How many times faster than in the file requests came."""
    seconds: float
    """That the run took, of real time."""
    pod_prefill_s: list[float] = field(default_factory=list)
    ttft_curve_s: list[float] = field(default_factory=list)
    """Quantiles of the time to first token, evenly apart, from least to greatest."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else was set."""


def run(cell: Cell) -> Figures:
    """Run a cell. Raises OSError and ValueError."""
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
    return _figures(
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
    """Return what the router takes a prefill to take: the truth, off by a factor."""
    return PrefillModel(latency.base * factor, latency.prefill * factor, latency.context * factor)


def _spread(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Return requests with those of one stamp spread up to the next, as `virtual.trace` does."""
    lines = spread([TraceLine(one.at, 1, 1, ()) for one in requests])
    return [replace(one, at=line.arrival) for one, line in zip(requests, lines, strict=True)]


def _speed(
    cell: Cell, block_size: int, requests: Sequence[LoggedRequest], latency: LatencyModel
) -> tuple[float, float]:
    """Return the ceiling of the hit ratio, and how fast the requests are to come."""
    ceiling, work = pooled(requests, cell.pods * cell.blocks_per_pod, block_size, latency)
    span = requests[-1].at - requests[0].at
    if not span > 0:
        source = cell.trace.name if isinstance(cell.trace, Generated) else cell.trace
        raise ValueError(
            f"{source}: timestamp: it is the same in all requests that fit ({len(requests)}), which "
            "has no speed; two that differ are needed"
        )
    # A pod that takes twice as long is half a pod.
    slow = cell.pods // 2
    return ceiling, cell.load * (cell.pods - slow + slow / cell.slow_factor) * span / work


def pooled(
    requests: Sequence[LoggedRequest], capacity: int, block_size: int, latency: LatencyModel
) -> tuple[float, float]:
    """Return the token hit ratio and the seconds of prefill of all requests with one LRU cache.

    It is fed in the order of arrival, `capacity` blocks large. No router can find much more cached.
    """
    found, work = trace.pooled(
        ((one.keys, one.prompt_tokens) for one in requests),
        capacity,
        block_size,
        lambda new, before: latency.step(StepWork([(new, before)])),
    )
    return found / sum(one.prompt_tokens for one in requests), work


class _Placing:
    """Brings requests to the router, and tells it what becomes of them, as a gateway does."""

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
        """Yield the requests and their times."""
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
                # No cycle is left, so that nobody need collect any.
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
    """Look for no cycles of objects meanwhile: there are none, and looking takes a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _figures(
    cell: Cell,
    outcomes: Sequence[Outcome],
    *,
    refused: int,
    ceiling: float,
    speed: float,
    busy: Sequence[float],
    begun: float,
) -> Figures:
    ttft = sorted(one.ttft for one in outcomes)
    e2e = sorted(one.end - one.arrival for one in outcomes)
    tpot = sorted(
        (one.end - one.first_token) / (one.num_output_tokens - 1)
        for one in outcomes
        if one.num_output_tokens > 1
    )
    makespan = max(one.end for one in outcomes)
    prompt = sum(one.num_prompt_tokens for one in outcomes)
    hit = sum(one.num_cached_tokens for one in outcomes) / prompt
    settings = {
        name: value
        for name, value in asdict(cell).items()
        if name
        in (
            "preset",
            "event_delay",
            "scrape",
            "no_events_share",
            "estimate_factor",
            "slow_factor",
            "reports",
            "raw_bursts",
        )
    }
    return Figures(
        trace=cell.trace.name.split(".")[0],
        policy=cell.policy,
        pods=cell.pods,
        blocks_per_pod=cell.blocks_per_pod,
        load=cell.load,
        engine=cell.engine,
        seed=cell.seed,
        requests=len(outcomes),
        refused=refused,
        token_hit_ratio=round(hit, 5),
        ceiling=round(ceiling, 5),
        hit_share=round(hit / ceiling, 4) if ceiling else 1.0,
        ttft_mean_s=round(sum(ttft) / len(ttft), 4),
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p90_s=_quantile(ttft, 0.9),
        ttft_p99_s=_quantile(ttft, 0.99),
        tpot_p90_ms=round(_quantile(tpot, 0.9) * 1000, 2),
        e2e_p90_s=_quantile(e2e, 0.9),
        output_tokens_per_s=round(sum(one.num_output_tokens for one in outcomes) / makespan, 2),
        imbalance=round(max(busy) / (sum(busy) / len(busy)), 4),
        utilisation=round(sum(busy) / len(busy) / makespan, 4),
        makespan_s=round(makespan, 2),
        speed=round(speed, 4),
        seconds=round(time.perf_counter() - begun, 2),
        pod_prefill_s=[round(seconds, 2) for seconds in busy],
        ttft_curve_s=[_quantile(ttft, point / CURVE) for point in range(CURVE + 1)],
        settings=settings,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a value, as `shared/bench/sim.py` counts; 0 where there is none."""
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 5)
