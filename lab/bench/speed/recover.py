"""The time until a restarted router knows a pod's whole cache again."""

import asyncio
import tempfile
import time
from pathlib import Path

import grpc.aio

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.keys.key import fingerprint
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.client import Watcher
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.made_up_fleet import MODEL, batches_of, feed, new_ingest
from warmpath.publisher.watch_server import WatchServer
from warmpath.router import state_file

CHAIN = 512
"""Blocks of one cached prompt."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure recovery of one pod: by replay of every event, by the saved state, by a snapshot."""
    blocks = 20_000 if quick else 1_000_000
    batches = [
        batch
        for seed in range(blocks // CHAIN)
        for batch in batches_of(seed, CHAIN, events=1, each=64)
    ]
    replayed = _replay(batches)
    saved = _state_file(batches)
    watched = asyncio.run(_snapshot(batches))
    baseline = "replaying every event"
    return [
        Figure(f"recover {blocks:,} blocks: {name}", seconds * 1e3, "ms", replayed * 1e3, baseline)
        for name, seconds in (
            ("replay", replayed),
            ("saved state", saved),
            ("a publisher's snapshot, over gRPC", watched),
        )
    ]


def _replay(batches: list[bytes]) -> float:
    _, (rank,) = new_ingest(embedded_index(1 << 30), 1)
    begun = time.perf_counter()
    feed(rank, batches)
    return time.perf_counter() - begun


def _state_file(batches: list[bytes]) -> float:
    ingest, (rank,) = new_ingest(embedded_index(1 << 30), 1)
    feed(rank, batches)
    with tempfile.TemporaryDirectory(prefix="warmpath-") as folder:
        path = Path(folder) / "state"
        state_file.save(path, ingest.save(), "")
        _, (fresh,) = new_ingest(embedded_index(1 << 30), 1)
        begun = time.perf_counter()
        [saved] = state_file.load(path, "")
        fresh.restore(saved)
        taken = time.perf_counter() - begun
    assert fresh.blocks() == rank.blocks()
    return taken


async def _snapshot(batches: list[bytes]) -> float:
    cache = PodCache("p", Journal("e", 1 << 20))
    source = RankSource("p", 0, MODEL, vllm.decode, has_replay=False)
    rank = cache.add(source, stale_after=1.0, clock=time.monotonic)
    rank.connected()
    feed(rank, batches)
    keyspace = fingerprint(MODEL, "")
    server = grpc.aio.server()
    watch = WatchServer(cache, keyspace=keyspace, most=4, heartbeat=5.0, slow_seconds=10.0)
    server.add_generic_rpc_handlers((watch.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ingest = Ingest(
        embedded_index(1 << 30),
        hash_seed="",
        pending_bytes=1,
        stale_after=60.0,
        clock=time.monotonic,
    )
    watched = ingest.watch("p", 0)
    watcher = Watcher(
        [watched], f"127.0.0.1:{port}", keyspace=keyspace, credentials=None, retry_seconds=1.0
    )
    begun = time.perf_counter()
    task = asyncio.create_task(watcher.run())
    while watched.trust.level is not Level.EXACT:  # noqa: ASYNC110  as a client would see it
        await asyncio.sleep(0.001)
    taken = time.perf_counter() - begun
    assert watched.blocks() == rank.blocks()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop(0)
    return taken
