"""The throughput of simulated workers: a trace on a virtual clock, and completions over HTTP."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import aiohttp

from warmpath.cli.child import Process
from warmpath.lab.bench.figure import Figure
from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.local.cluster import Worker, WorkerSettings
from warmpath.lab.simulate.run import pooled, spread
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS
from warmpath.lab.simworker.v1.assemble import KVGroup, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import VirtualCluster

WORKERS = 8
REQUESTS = 50_000
BLOCKS = 1500
"""Blocks of a worker."""
LOAD = 0.5
"""Seconds of prefill that each worker gets in a second."""
NEEDED_A_SECOND = REQUESTS / 180
"""The promised rate: 50,000 requests in three minutes."""

PROMPT, ANSWER = 128, 8
"""Tokens of the prompt and of the answer."""
CLIENTS = 64
NEEDED_OVER_HTTP = 200.0
SETTINGS = WorkerSettings(blocks=20_000, block_size=16, speed=1000.0, vocab_size=32_000)
"""The GPU is so fast that the worker itself is the limit."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure a trace on a virtual clock, and completions over HTTP."""
    return [
        Figure(
            f"requests of a trace, {WORKERS} workers on a virtual clock",
            _on_a_virtual_clock(2000 if quick else REQUESTS),
            "req/s",
            NEEDED_A_SECOND,
            "50,000 in 3 minutes",
            1.0,
            least=True,
        ),
        Figure(
            f"completions over HTTP, {PROMPT} + {ANSWER} tokens, {CLIENTS} clients",
            asyncio.run(_over_http(500 if quick else 5000)),
            "req/s",
            NEEDED_OVER_HTTP,
            "200 a second",
            1.0,
            least=True,
        ),
    ]


def _on_a_virtual_clock(requests: int) -> float:
    """Return the requests a second of real time; workers in turn serve them at half of what they can."""
    traffic, latency = read_traffic(CHATS), PRESETS[DEFAULT_PRESET]
    trace, size = spread(traffic.requests), traffic.block_size
    engines = [
        build_engine(
            # One more for vLLM's null block.
            kv_cache_config(BLOCKS + 1, [KVGroup(size)]),
            SchedulerConfig(max_model_len=131_072, max_num_seqs=128, max_num_batched_tokens=8192),
            latency,
        )
        for _ in range(WORKERS)
    ]
    _, work = pooled(trace, WORKERS * BLOCKS, size, latency)
    span = trace[-1].at - trace[0].at
    speed = LOAD * WORKERS * span / work
    turns = count()
    cluster = VirtualCluster(engines, lambda _generation, _now: next(turns) % WORKERS)
    arrivals = (
        (
            (one.at - trace[0].at + turn * (span + span / len(trace))) / speed,
            Generation(
                f"r{turn}-{number}",
                range(one.prompt_tokens),
                one.output_tokens,
                lambda _tokens, _last: None,
                # Each turn has prompts of its own.
                prompt_hashes=[bytes((turn,)) + name for name in one.block_hashes],
            ),
        )
        for turn in count()
        for number, one in enumerate(trace)
    )
    begun = time.perf_counter()
    served = len(cluster.run(islice(arrivals, requests)))
    seconds = time.perf_counter() - begun
    cluster.check()
    return served / seconds


async def _over_http(requests: int) -> float:
    """Return the requests a second that one worker serves to clients on the same machine."""
    with tempfile.TemporaryDirectory(prefix="warmpath-") as folder:
        worker = Worker("w", Process("the worker", Path(folder) / "log"))
        await worker.start(SETTINGS)
        try:
            numbers = iter(range(requests))
            async with aiohttp.ClientSession(f"http://{worker.address}") as http:
                begun = time.perf_counter()
                await asyncio.gather(*(_client(http, numbers) for _ in range(CLIENTS)))
                return requests / (time.perf_counter() - begun)
        finally:
            await worker.process.stop()


async def _client(http: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
    for number in numbers:
        first = 16 + number % 31_000
        prompt = [first, number // 31_000, *range(100, 100 + PROMPT - 2)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": ANSWER}
        async with http.post("/v1/completions", json=body) as response:
            answer = await response.json()
            if response.status != 200:
                raise RuntimeError(f"the worker answered {response.status}: {answer}")
