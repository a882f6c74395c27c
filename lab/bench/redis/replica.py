"""Score in a router in replica mode, beside one that follows the engines itself."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import fingerprint, pack_tokens
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.machine import Writer
from warmpath.indexer.shared.writer.run import write
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.look_up import BLOCKS, TOKENS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import (
    BLOCK_SIZE,
    MODEL,
    batches_of,
    feed,
    new_ingest,
    prompt_of,
)
from warmpath.lab.local.redis_server import RedisServer
from warmpath.process.tasks import cancel
from warmpath.publisher.assemble import COLLECT_SECONDS, collect_forever
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.strategies import longest_prefix

PODS = 8
NAMES = KeyNames("bench-replica")
KEYSPACE = fingerprint(MODEL, "")
SECONDS = 60.0
"""The longest wait for a copy to be complete."""
PACE = 0.01
"""Seconds between two prompts that a pod stores."""


def measure(server: RedisServer, *, quick: bool) -> list[Figure]:
    """Measure Score of a prompt that all pods hold, at rest and while pods store other prompts."""
    return asyncio.run(_measure(server, quick=quick))


async def _measure(server: RedisServer, *, quick: bool) -> list[Figure]:
    prompts, calls = (4, 60) if quick else (50, 3000)
    async with AsyncExitStack() as stack:
        redis = await connect(RedisSettings(server.url))
        stack.push_async_callback(redis.close)
        publishers = [Publisher(f"pod-{number}") for number in range(PODS)]
        direct, followed = new_ingest(embedded_index(1 << 28), PODS)
        held = [list(batches_of(seed, BLOCKS, events=1, each=BLOCKS)) for seed in range(prompts)]
        for batches in held:
            for rank in (*followed, *(publisher.rank for publisher in publishers)):
                feed(rank, batches)
        for publisher in publishers:
            await stack.enter_async_context(writing(redis, publisher))
        copied, copies = await stack.enter_async_context(copying(redis))
        asked = [
            TokenPrompt(MODEL, pack_tokens(prompt_of(seed, BLOCKS)[:TOKENS]))
            for seed in range(prompts)
        ]
        routers: dict[str, tuple[Scorer, Sequence[Rank]]] = {
            "copies": (Scorer(copied, ""), copies),
            "follows": (Scorer(direct, ""), followed),
        }
        await _until_equal(routers, asked)
        rest = await _times(routers, asked, calls)
        feeding = asyncio.create_task(_feed(publishers, followed, first=prompts))
        meanwhile = await _times(routers, asked, calls)
        await cancel([feeding])
        await until_as_many(copies, followed)
    what = f"Score of {TOKENS:,} ids in process, {PODS} pods, index copied from Redis: p50"
    return [
        Figure(
            name, statistics.median(taken["copies"]), "us", statistics.median(taken["follows"]),
            "engines followed", goal=1.1,
        )
        for name, taken in ((what, rest), (f"{what}, while prompts come", meanwhile))
    ]  # fmt: skip


class Publisher:
    """Follows one pod's engine and writes to the shared index."""

    def __init__(self, pod: str) -> None:
        self.cache = PodCache(pod, Journal("bench", 1 << 24))
        source = RankSource(pod, 0, MODEL, vllm.decode, has_replay=False)
        self.rank = self.cache.add(
            source, stale_after=SECONDS, segmented=True, clock=time.monotonic
        )
        self.rank.connected()
        self.news = asyncio.Event()
        self.writer = Writer(
            NAMES,
            self.cache,
            owner=pod,
            keyspace=KEYSPACE,
            model=MODEL,
            watch="",
            lease=10.0,
            bucket_life=86_400.0,
            clock=time.monotonic,
        )


@asynccontextmanager
async def writing(redis: Redis, publisher: Publisher) -> AsyncIterator[None]:
    """Write a publisher's pod to Redis while the context is open."""
    wake = [publisher.news.set]
    works = [
        write(redis, publisher.writer, publisher.news, timeout=5.0),
        collect_forever(publisher.cache, wake, pause=COLLECT_SECONDS, clock=time.monotonic),
    ]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        await cancel(tasks)


@asynccontextmanager
async def copying(redis: Redis) -> AsyncIterator[tuple[Ingest, Sequence[Rank]]]:
    """Copy `PODS` pods from Redis while the context is open; yield the index and the pods' ranks."""
    ingest, _ = new_ingest(embedded_index(1 << 28), 0)
    replica = Replica(redis, NAMES, poll_seconds=0.05, clock=time.monotonic)
    ranks = []
    for number in range(PODS):
        pod = f"pod-{number}"
        rank = ingest.watch(pod, 0)
        replica.add(pod, [rank], KEYSPACE)
        ranks.append(rank)
    task = asyncio.create_task(replica.run())
    try:
        yield ingest, ranks
    finally:
        await cancel([task])


async def _until_equal(
    routers: dict[str, tuple[Scorer, Sequence[Rank]]], asked: Sequence[TokenPrompt]
) -> None:
    """Wait until the copy is trusted; assert that both routers give the whole match."""
    deadline = time.monotonic() + SECONDS
    _, copies = routers["copies"]
    while not all(rank.trust.level is Level.EXACT for rank in copies):
        assert time.monotonic() < deadline, [rank.trust for rank in copies]
        await asyncio.sleep(0.01)
    whole = (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
    for prompt in asked:
        for scorer, ranks in routers.values():
            matches = scorer.matches(prompt, ranks, longest_prefix)
            assert [matches[rank].matched_tokens for rank in ranks] == [whole] * PODS


async def until_as_many(copies: Sequence[Rank], followed: Sequence[RankIngest]) -> None:
    """Wait until the copy has as many blocks as the followed ranks."""
    deadline = time.monotonic() + SECONDS
    while [rank.blocks() for rank in copies] != [rank.blocks() for rank in followed]:
        assert time.monotonic() < deadline, "the copy does not become complete"
        await asyncio.sleep(0.01)


async def _times(
    routers: dict[str, tuple[Scorer, Sequence[Rank]]], asked: Sequence[TokenPrompt], calls: int
) -> dict[str, list[float]]:
    """Return the microseconds of each Score; between two Scores, other tasks run."""
    taken: dict[str, list[float]] = {name: [] for name in routers}
    with no_collector():
        for call in range(calls):
            for name, (scorer, ranks) in routers.items():
                begun = time.perf_counter()
                scorer.matches(asked[call % len(asked)], ranks, longest_prefix)
                taken[name].append((time.perf_counter() - begun) * 1e6)
                await asyncio.sleep(0)
    return taken


async def _feed(
    publishers: Sequence[Publisher], followed: Sequence[RankIngest], *, first: int
) -> None:
    """Let one pod after the other store further prompts, until cancelled."""
    seed = first
    while True:
        publisher, rank = publishers[seed % PODS], followed[seed % PODS]
        batches = list(batches_of(seed, BLOCKS, events=1, each=BLOCKS))
        feed(publisher.rank, batches)
        feed(rank, batches)
        if publisher.cache.collect():
            publisher.news.set()
        seed += 1
        await asyncio.sleep(PACE)
