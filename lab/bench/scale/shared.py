"""The work of Redis in the shared index, for a publisher, a copy and a look-up."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec

from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.redis.content import prompts_of
from warmpath.lab.bench.redis.layout import PackedLayout, PipelineClient, run_on
from warmpath.lab.bench.redis.replica import PODS, Publisher, copying, until_as_many, writing
from warmpath.lab.bench.redis.rounds import begin, fill, server_times
from warmpath.lab.bench.stand.look_up import BLOCKS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import batches_of, feed
from warmpath.lab.local.redis_server import RedisServer

PROMPT = 640
"""Blocks of a prompt that is stored at once."""
SEQUENCES = 16
"""Sequences of one engine that decode, and fill a further block each in a batch."""
PROMPTS, STEPS = f"prompts of {PROMPT} blocks", f"steps of {SEQUENCES} sequences x 1 block"
SERVED = f"Redis: 1,000 look-ups of {BLOCKS} blocks that {PODS} pods hold"
ASKED = f"router: 1,000 look-ups of {BLOCKS} blocks in Redis"


def measure(*, quick: bool) -> Iterator[Figure]:
    """Measure publishers' writes, a router's copy, and look-ups."""
    with RedisServer("redis") as server:
        yield from asyncio.run(_of_publishers(server, quick=quick))
        yield from _look_ups(server, quick=quick)


class _Spent(NamedTuple):
    """The work of a server so far."""

    seconds: float
    scripts: int
    """Calls of scripts; the server counts commands within them, too, as commands."""
    received: int
    sent: int

    @classmethod
    def of(cls, server: RedisServer) -> "_Spent":
        stats: Any = server.client.info("stats")
        calls: Any = server.client.info("commandstats")
        return cls(
            server.busy(),
            sum(
                calls.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
            ),
            stats["total_net_input_bytes"],
            stats["total_net_output_bytes"],
        )


async def _of_publishers(server: RedisServer, *, quick: bool) -> list[Figure]:
    prompts, steps = (2, 20) if quick else (20, 400)
    figures = []
    async with AsyncExitStack() as stack:
        redis = await connect(RedisSettings(server.url))
        stack.push_async_callback(redis.close)
        publishers = [Publisher(f"pod-{number}") for number in range(PODS)]
        for publisher in publishers:
            await stack.enter_async_context(writing(redis, publisher))
        await _write(publishers, [_prompts(1, 1)])
        kinds = {PROMPTS: _prompts(2, prompts), STEPS: _steps(1000, steps)}
        spent = {}
        for kind, batches in kinds.items():
            blocks = prompts * PROMPT if kind is PROMPTS else steps * SEQUENCES
            before = _Spent.of(server)
            await _write(publishers, [[batch] for batch in batches])
            spent[kind] = _per_thousand(before, _Spent.of(server), PODS * blocks)
            seconds, scripts, received, _ = spent[kind]
            name = f"Redis: 1,000 blocks of a publisher, {kind}"
            figures += [
                Figure(f"{name}: processor", seconds, "s"),
                Figure(f"{name}: calls", scripts, ""),
                Figure(f"{name}: received", received / 1e3, "kB"),
            ]
        idle = await _idle(server, quick=quick)
        _, copies = await stack.enter_async_context(copying(redis))
        await until_as_many(copies, [one.rank for one in publishers])
        polled = await _idle(server, quick=quick)
        before = _Spent.of(server)
        await _write(publishers, [[batch] for batch in _prompts(100, prompts)])
        await until_as_many(copies, [one.rank for one in publishers])
        both = _per_thousand(before, _Spent.of(server), PODS * prompts * PROMPT)
    alone = spent[PROMPTS]
    polls = polled.polls / 1000
    empty = "Redis: 1,000 publishers that store nothing, each second"
    copied = f"Redis: 1,000 blocks that one router copies, {PROMPTS}"
    poll = "1,000 polls of a pod"
    rows = (
        (f"{empty}: processor", idle.server * 1000 / PODS, "s"),
        (f"{empty}: commands", idle.commands * 1000 / PODS, ""),
        (
            f"Redis: {poll} by a router that copies: processor",
            (polled.server - idle.server) / polls,
            "s",
        ),
        (f"router: {poll} that it copies", (polled.router - idle.router) / polls, "s"),
        (f"{copied}: processor", max(0.0, both[0] - alone[0]), "s"),
        (f"{copied}: sent", (both[3] - alone[3]) / 1e3, "kB"),
    )
    return [*figures, *(Figure(*row) for row in rows)]


def _per_thousand(before: _Spent, after: _Spent, blocks: int) -> Sequence[float]:
    return [(now - then) * 1000 / blocks for then, now in zip(before, after, strict=True)]


def _prompts(seed: int, count: int) -> list[bytes]:
    """Return batches that store a prompt each."""
    return [
        batch
        for number in range(count)
        for batch in batches_of(seed + number, PROMPT, events=1, each=PROMPT)
    ]


def _steps(seed: int, count: int) -> list[bytes]:
    """Return batches that store a further block of each of `SEQUENCES` sequences."""
    sequences = [batches_of(seed + one, count, events=1, each=1) for one in range(SEQUENCES)]
    return [
        msgspec.msgpack.encode(
            [0.0, [event for batch in step for event in msgspec.msgpack.decode(batch)[1]], 0]
        )
        for step in zip(*sequences, strict=True)
    ]


async def _write(publishers: Sequence[Publisher], turns: Sequence[Sequence[bytes]]) -> None:
    """Let all publishers follow some batches, and wait until Redis has them, turn by turn."""
    for batches in turns:
        for publisher in publishers:
            feed(publisher.rank, batches)
            if publisher.cache.collect():
                publisher.news.set()
        while any(one.writer.applied < one.cache.journal.sequence for one in publishers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class _Idle(NamedTuple):
    """The costs of a second in which nothing is stored."""

    server: float
    router: float
    """Processor seconds of this process, which runs the publishers, too."""
    commands: float
    polls: float


async def _idle(server: RedisServer, *, quick: bool) -> _Idle:
    seconds = 1.0 if quick else 10.0

    def spent() -> tuple[float, ...]:
        calls: Any = server.client.info("commandstats")
        commands = {name: one["calls"] for name, one in calls.items()}
        polls = commands.get("cmdstat_xrange", 0)
        return server.busy(), time.process_time(), sum(commands.values()), polls, time.monotonic()

    before = spent()
    await asyncio.sleep(seconds)
    *found, taken = (now - then for then, now in zip(before, spent(), strict=True))
    return _Idle(*(one / taken for one in found))


def _look_ups(server: RedisServer, *, quick: bool) -> Iterator[Figure]:
    calls = 20 if quick else 1000
    client = PipelineClient(server.client)
    layouts = begin(server, client, {"ours": PackedLayout(PODS)})
    content = prompts_of(BLOCKS, PODS, 16)
    fill(client, layouts, content)
    [microseconds] = server_times(server, client, layouts, content.prompts, calls)["ours"]
    yield Figure(f"{SERVED}: processor", microseconds / 1e3, "s")

    async def asked(redis: Redis) -> float:
        begun = time.process_time()
        for call in range(calls):
            keys = content.prompts[call % len(content.prompts)].keys
            await run_on(redis, layouts["ours"].look_up(keys))
        return (time.process_time() - begun) / calls

    async def measured() -> float:
        redis = await connect(RedisSettings(server.url))
        try:
            return await asked(redis)
        finally:
            await redis.close()

    with no_collector():
        yield Figure(f"{ASKED}: processor", asyncio.run(measured()) * 1e3, "s")
