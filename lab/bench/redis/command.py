"""The shared index in Redis against llm-d's layout, in turns, on one server with one client."""

import statistics
from collections.abc import Iterator

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.redis import replica
from warmpath.lab.bench.redis.content import fleet_of, prompts_of
from warmpath.lab.bench.redis.layout import PackedLayout, PipelineClient
from warmpath.lab.bench.redis.llmd_layout import LlmdLayout
from warmpath.lab.bench.redis.rounds import (
    Figures,
    Layouts,
    begin,
    bulk_rates,
    bytes_a_block,
    edge_times,
    fill,
    look_up_times,
    server_times,
    step_rates,
)
from warmpath.lab.local.redis_server import RedisServer

BASELINE = "llm-d's layout"
WHOLE = "llm-d's layout, as its Add and Evict do it"
SIZES = ((625, 8, 16), (625, 64, 8), (6250, 8, 4), (6250, 64, 2))
"""(blocks of a prompt, pods, prompts) of each measurement of look-ups."""
SHARES = {"held by all": 1.0, "half held": 0.5, "held by none": 0.0}


def measure(*, quick: bool) -> list[Figure]:
    """Measure look-ups, updates and memory on Redis."""
    with RedisServer("redis") as server:
        client = PipelineClient(server.client)
        return [
            *_look_ups(server, client, quick=quick),
            *_updates(server, client, quick=quick),
            *_bytes(server, client, quick=quick),
            *replica.measure(server, quick=quick),
        ]


def _layouts(pods: int) -> Layouts:
    return {"ours": PackedLayout(pods), "peer": LlmdLayout(pods)}


def _look_ups(server: RedisServer, client: PipelineClient, *, quick: bool) -> Iterator[Figure]:
    for blocks, pods, count in SIZES[:1] if quick else SIZES:
        layouts = begin(server, client, _layouts(pods))
        calls = 20 if quick else max(20, 1_000_000 // (blocks * pods))
        what = f"look-up of {blocks:,} blocks x {pods} pods"
        for seed, (held, share) in enumerate(SHARES.items()):
            content = prompts_of(blocks, pods, 2 if quick else count, share=share, seed=seed)
            fill(client, layouts, content)
            prompts = content.prompts
            taken = look_up_times(client, layouts, prompts, calls)
            goal = 1 / 8 if (blocks, pods, share) == (625, 8, 1.0) else None
            yield _times(f"{what}, {held}", taken, goal=goal)
            if share < 1:
                continue
            fastest = {name: times[:1] for name, times in taken.items()}
            yield _times(f"{what}, {held}: the fastest", fastest)
            edge = edge_times(server, layouts, prompts, calls // 2)
            yield _times(f"{what}, {held}: asyncio", edge)
            own = server_times(server, client, layouts, prompts, calls // 2)
            yield _times(f"{what}, {held}: in the server", own)


def _times(name: str, taken: Figures, goal: float | None = None) -> Figure:
    ours, peer = (statistics.median(taken[who]) for who in ("ours", "peer"))
    return Figure(name, ours, "us", peer, BASELINE, goal=goal)


def _updates(server: RedisServer, client: PipelineClient, *, quick: bool) -> Iterator[Figure]:
    rounds, steps = (1, 4) if quick else (5, 64)
    for pods in (8,) if quick else (8, 64):
        layouts = begin(server, client, _layouts(pods))
        fill(client, layouts, prompts_of(625, pods, 1 if quick else 8))
        added, removed = bulk_rates(client, layouts, pods, prompts=16 // pods or 1, rounds=rounds)
        what = f"625 blocks at a time, {pods} pods"
        yield _rates(f"adding {what}", added, goal=4 if pods == 8 else None)
        yield _rates(f"removing {what}", removed)
    for wide in (16, 64):
        layouts = begin(server, client, _layouts(8))
        fill(client, layouts, prompts_of(625, 8, 1))
        added, removed = step_rates(client, layouts, 8, wide=wide, steps=steps, rounds=rounds)
        yield _rates(f"adding steps of {wide} segments x 1 block, 8 pods", added)
        yield _rates(f"removing steps of {wide} segments x 1 block, 8 pods", removed)
    both: Layouts = {"ours": PackedLayout(8), "peer": LlmdLayout(8, engines=True)}
    layouts = begin(server, client, both)
    fill(client, layouts, prompts_of(625, 8, 1))
    added, removed = bulk_rates(client, layouts, 1 if quick else 2, prompts=1, rounds=rounds)
    yield _rates("adding 625 blocks at a time, 2 pods", added, WHOLE)
    yield _rates("removing 625 blocks at a time, 2 pods", removed, WHOLE)
    added, _ = step_rates(client, layouts, 8, wide=16, steps=steps // 4, rounds=rounds)
    yield _rates("adding steps of 16 segments x 1 block, 8 pods", added, WHOLE)


def _rates(
    name: str, rates: Figures, baseline: str = BASELINE, goal: float | None = None
) -> Figure:
    ours, peer = (statistics.median(rates[who]) / 1000 for who in ("ours", "peer"))
    return Figure(name, ours, "thousand blocks/s", peer, baseline, goal=goal, least=True)


def _bytes(server: RedisServer, client: PipelineClient, *, quick: bool) -> Iterator[Figure]:
    part = 20 if quick else 1
    for what, content in (
        ("prompts of 625 blocks, 8 holders", prompts_of(625, 8, 80 // part)),
        ("prompts of 625 blocks, 64 holders", prompts_of(625, 64, 20 // part)),
        ("chats under system prompts, 64 pods", fleet_of(64, 2000 // part)),
    ):
        found = bytes_a_block(server, client, _layouts(content.pods), content)
        yield Figure(
            f"bytes a block, {what}", found["ours"], "bytes", found["peer"], BASELINE, goal=1 / 3
        )
