"""Many workers serve a recorded trace, on a virtual clock.

Usage: python -m warmpath.lab.simworker.virtual.simulate OPTIONS

The workers have vLLM's simulated scheduler and KV cache manager, unchanged, on a virtual clock. Requests
carry no tokens, but the trace's block hashes (`lab/simworker/virtual/trace.py`). A trace that is too
short is repeated with fresh ids. Arrivals are sped up to the load of `--load`: the seconds of prefill
that the trace takes with one LRU cache as large as all workers' together, divided by workers x time.
Decoding comes on top of it, so a load of 1 is more than the workers can serve.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS
from warmpath.lab.simworker.v1.assemble import KVGroup, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.engine import V1Engine
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import RequestOutcome, Route, VirtualCluster
from warmpath.lab.simworker.virtual.trace import (
    TRACE_BLOCK_SIZE,
    TraceLine,
    pooled_work,
    read_trace,
    repeated,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a trace with simulated workers; print the figures as JSON."""
    args = _parser().parse_args(argv)
    try:
        print(json.dumps(simulate(args), indent=2))
    except (OSError, ValueError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.simworker.virtual.simulate",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--trace", type=Path, required=True, help="a .jsonl or .jsonl.gz")
    add("--workers", type=int, default=8)
    add("--requests", type=int, default=50_000)
    add("--policy", choices=("round-robin", "random"), default="round-robin", help="picks workers")
    add("--load", type=float, default=0.5, help="seconds of prefill per worker and second")
    add("--preset", choices=sorted(PRESETS), default=DEFAULT_PRESET, help="GPU and model")
    add("--blocks", type=int, default=1500, help="blocks of a worker, 512 tokens each")
    add("--max-num-seqs", type=int, default=128, help="requests running at once on a worker")
    add("--max-num-batched-tokens", type=int, default=8192, help="tokens a step")
    add("--max-model-len", type=int, default=131_072, help="tokens of prompt and answer")
    add("--event-delay", type=float, default=0.05, help="seconds until events are counted")
    add("--seed", type=int, default=1, help="seed of the policy `random`")
    return parser


def simulate(args: argparse.Namespace) -> dict[str, object]:
    """Return the figures. Raises ValueError for settings out of their limits."""
    if args.workers < 1 or args.requests < 1:
        raise ValueError("--workers, --requests: at least 1")
    if not args.load > 0:
        raise ValueError("--load: above 0")
    lines = read_trace(args.trace)
    latency = PRESETS[args.preset].latency
    engines = [_engine(args, latency) for _ in range(args.workers)]
    speed = _speed(lines, latency, args)
    events = [0] * args.workers

    def count_events(_now: float, worker: int, happened: Sequence[CacheEvent]) -> None:
        events[worker] += len(happened)

    begun = time.perf_counter()
    cluster = VirtualCluster(
        engines, _route(args), on_events=count_events, event_delay=args.event_delay
    )
    outcomes = cluster.run(_arrivals(lines, args.requests, speed))
    seconds = time.perf_counter() - begun
    for engine in engines:
        engine.check()
    cluster.check()
    return {
        "requests": len(outcomes),
        "seconds": round(seconds, 2),
        "requests_per_second": round(len(outcomes) / seconds, 1),
        "simulated_seconds": round(cluster.now, 1),
        "steps_or_leaps": cluster.steps,
        "speed_of_trace": round(speed, 3),
        **_figures(outcomes),
        "preemptions": sum(outcome.num_preemptions for outcome in outcomes),
        "cache_events": sum(events),
        "blocks_in_use": sum(engine.manager.usage > 0 for engine in engines),
        "checks": "passed",
    }


def _engine(args: argparse.Namespace, latency: LatencyModel) -> V1Engine:
    return build_engine(
        # One more for vLLM's null block.
        kv_cache_config(args.blocks + 1, [KVGroup(TRACE_BLOCK_SIZE)]),
        SchedulerConfig(
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
        ),
        latency,
    )


def _speed(lines: Sequence[TraceLine], latency: LatencyModel, args: argparse.Namespace) -> float:
    def prefill(new: int, before: int) -> float:
        return latency.step(StepWork([(new, before)]))

    work = pooled_work(lines, args.workers * args.blocks, prefill)
    span = lines[-1].arrival - lines[0].arrival
    if not span > 0:
        raise ValueError("--trace: all its requests come at once, so they have no speed")
    return float(args.load * args.workers * span / work)


def _route(args: argparse.Namespace) -> Route:
    if args.policy == "random":
        rng = random.Random(args.seed)
        return lambda _generation, _now: rng.randrange(args.workers)
    turns = count()
    return lambda _generation, _now: next(turns) % args.workers


def _arrivals(
    lines: Sequence[TraceLine], number: int, speed: float
) -> Iterator[tuple[float, Generation]]:
    start = lines[0].arrival
    for at, line in enumerate(repeated(lines, number)):
        generation = Generation(
            f"r{at}",
            range(line.num_prompt_tokens),
            line.max_tokens,
            lambda _tokens, _last: None,
            prompt_hashes=line.prompt_hashes(),
        )
        yield (line.arrival - start) / speed, generation


def _figures(outcomes: Sequence[RequestOutcome]) -> dict[str, object]:
    served = [outcome for outcome in outcomes if not outcome.refused]
    prompt = sum(outcome.num_prompt_tokens for outcome in served)
    cached = sum(outcome.num_cached_tokens for outcome in served)
    ttft = sorted(outcome.ttft for outcome in served)
    tpot = sorted(
        (outcome.end - outcome.first_token) / (outcome.num_output_tokens - 1)
        for outcome in served
        if outcome.num_output_tokens > 1
    )
    return {
        "refused": len(outcomes) - len(served),
        "prompt_tokens": prompt,
        "output_tokens": sum(outcome.num_output_tokens for outcome in served),
        "hit_ratio": round(cached / max(prompt, 1), 4),
        "ttft_seconds": _quantiles(ttft),
        "tpot_seconds": _quantiles(tpot),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    found = {
        f"p{percent}": round(values[min(len(values) * percent // 100, len(values) - 1)], 4)
        for percent in (50, 90, 99)
    }
    return {"mean": round(sum(values) / len(values), 4), **found}


if __name__ == "__main__":
    sys.exit(main())
