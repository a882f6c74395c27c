"""The figures of a run: hit ratio, times, balance."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.traffic.requests import LoggedTraffic
from warmpath.lab.simworker.virtual.cluster import RequestOutcome
from warmpath.router.diagnosis.shadow import imbalance, quantile

CURVE = 200
"""Points of a curve of quantiles."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. All times except `seconds` are modelled ones."""

    trace: str
    policy: str
    pods: int
    blocks_per_pod: int
    load: float
    engine: str
    seed: int
    requests: int
    refused: int
    """How many requests fit into no empty pod; they are in no other figure."""
    token_hit_ratio: float
    """The share of prompt tokens that engines found cached."""
    ceiling: float
    """The token hit ratio of one LRU cache as large as all pods' together."""
    hit_share: float
    """`token_hit_ratio` divided by `ceiling`; 1 where the ceiling is 0."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    tpot_p90_ms: float
    """90th percentile of the milliseconds for each token of an answer after the first."""
    e2e_p90_s: float
    output_tokens_per_s: float
    imbalance: float
    """The busiest pod's seconds of prefill, divided by the mean over all pods."""
    utilisation: float
    """The share of time in which a pod computes prompts, the mean over all pods."""
    makespan_s: float
    arrivals_s: float
    """The time between the first request and the last."""
    speed: float
    """How many times faster requests arrived than in the recorded or generated traffic."""
    seconds: float
    """How long the run took, in real time."""
    pod_prefill_s: list[float] = field(default_factory=list)
    ttft_curve_s: list[float] = field(default_factory=list)
    """Quantiles of the time to first token, evenly apart, from least to greatest."""
    tpot_p50_ms: float = 0.0
    tpot_p99_ms: float = 0.0
    prompt_tokens_per_s: float = 0.0
    pace: str = ""
    """How sessions come in a closed loop; empty where requests come at times of their own."""
    sessions: int = 0
    """How many sessions of a closed loop have ended."""
    slowed_p50: float = 0.0
    """A session's time divided by its time alone on an idle fleet, the median."""
    slowed_p90: float = 0.0
    sessions_ttft_p90_s: float = 0.0
    """Of a closed loop: of the sessions' requests, and of those beside them."""
    beside_ttft_p90_s: float = 0.0
    pod_hours: float = 0.0
    """The time of all pods, cold starts included."""
    settings: dict[str, Any] = field(default_factory=dict)
    bad_lines: int = 0
    """How many lines of the trace are wrong; they are in no other figure."""
    first_bad_lines: Sequence[str] = ()
    """The first wrong lines of the trace: each one's number, and what is wrong."""


class Pace(NamedTuple):
    """How fast requests come."""

    ceiling: float
    """The token hit ratio of one LRU cache as large as all pods' together."""
    load: float
    speed: float
    """How many times as fast as recorded or generated requests come."""


def figures(
    cell: Cell,
    traffic: LoggedTraffic,
    pace: Pace,
    outcomes: Sequence[RequestOutcome],
    *,
    refused: int,
    busy: Sequence[float],
    begun: float,
    slowed: Sequence[float] = (),
    of_sessions: int = 0,
    pod_seconds: float = 0.0,
) -> Figures:
    """Return the figures of a run that began at `begun`, by `time.perf_counter`.

    `slowed` has the ratio of each session's time to that alone; the first `of_sessions` requests, by
    their numbers, are those of sessions. `pod_seconds` is the time of pods that were started and ended;
    0: all served all the time.
    """
    slowed = sorted(slowed)
    ttft = sorted(one.ttft for one in outcomes)
    own, others = (
        sorted(one.ttft for one in outcomes if (int(one.request_id) < of_sessions) == is_own)
        for is_own in (True, False)
    )
    e2e = sorted(one.end - one.arrival for one in outcomes)
    tpot = sorted(
        (one.end - one.first_token) / (one.num_output_tokens - 1)
        for one in outcomes
        if one.num_output_tokens > 1
    )
    makespan = max(one.end for one in outcomes)
    prompt = sum(one.num_prompt_tokens for one in outcomes)
    hit = sum(one.num_cached_tokens for one in outcomes) / prompt
    shown = {"trace", *(one.name for one in fields(Figures))}
    settings = {name: value for name, value in asdict(cell).items() if name not in shown}
    return Figures(
        trace=cell.trace.name.split(".")[0],
        policy=cell.title,
        pods=cell.pods,
        blocks_per_pod=cell.blocks_per_pod,
        load=round(pace.load, 4),
        engine=cell.engine,
        seed=cell.seed,
        requests=len(outcomes),
        refused=refused,
        bad_lines=traffic.bad_lines,
        first_bad_lines=traffic.first_bad_lines,
        token_hit_ratio=round(hit, 5),
        ceiling=round(pace.ceiling, 5),
        hit_share=round(hit / pace.ceiling, 4) if pace.ceiling else 1.0,
        ttft_mean_s=round(sum(ttft) / len(ttft), 4),
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p90_s=_quantile(ttft, 0.9),
        ttft_p95_s=_quantile(ttft, 0.95),
        ttft_p99_s=_quantile(ttft, 0.99),
        tpot_p50_ms=round(_quantile(tpot, 0.5) * 1000, 2),
        tpot_p90_ms=round(_quantile(tpot, 0.9) * 1000, 2),
        tpot_p99_ms=round(_quantile(tpot, 0.99) * 1000, 2),
        e2e_p90_s=_quantile(e2e, 0.9),
        output_tokens_per_s=round(sum(one.num_output_tokens for one in outcomes) / makespan, 2),
        prompt_tokens_per_s=round(prompt / makespan, 2),
        pace=cell.pace,
        sessions=len(slowed),
        slowed_p50=_quantile(slowed, 0.5),
        slowed_p90=_quantile(slowed, 0.9),
        sessions_ttft_p90_s=_quantile(own, 0.9),
        beside_ttft_p90_s=_quantile(others, 0.9) if of_sessions else 0.0,
        imbalance=round(imbalance(busy), 4),
        utilisation=round(sum(busy) / len(busy) / makespan, 4),
        makespan_s=round(makespan, 2),
        arrivals_s=round(max(one.arrival for one in outcomes), 2),
        speed=round(pace.speed, 4),
        seconds=round(time.perf_counter() - begun, 2),
        pod_prefill_s=[round(seconds, 2) for seconds in busy],
        ttft_curve_s=[_quantile(ttft, point / CURVE) for point in range(CURVE + 1)],
        pod_hours=round((pod_seconds or cell.pods * makespan) / 3600, 2),
        settings=settings,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile, rounded; 0 for no values."""
    return round(quantile(ordered, share), 5)
