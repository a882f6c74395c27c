"""A router's side of the shared index: connections to Redis, look-ups and copies of pods."""

import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import log_server_warnings
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import Registry
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.sweep.sweeper import Sweeper
from warmpath.process.tasks import Work, cancel, kept, watched
from warmpath.router.config import schema as config

log = logging.getLogger(__name__)


def is_asked_by_answers(table: config.SharedIndexTable) -> bool:
    """Return whether the loop that answers calls uses Redis, for each prompt or to share bookings.

    It then has its own connections, so that its commands do not wait behind a flood of events in the
    loop that follows pods.
    """
    return table.mode == "shared" or table.share_bookings


@asynccontextmanager
async def reached(
    table: config.SharedIndexTable, folder: Path, *, sweeps: bool = True
) -> AsyncIterator[Redis]:
    """Open a Redis client for the calling event loop while the context is open.

    With `sweeps` this router sweeps the index whenever no other process does. The client connects on
    first use. Raises ValueError if the settings contradict each other.
    """
    # `router.config.read` has checked that the extra is installed.
    from warmpath.indexer.shared.redis.connect import RedisSettings, connect  # noqa: PLC0415

    def path(name: str) -> str:
        return str(folder / name) if name else ""

    redis = await connect(
        RedisSettings(
            url=table.url,
            user=table.user,
            password_file=path(table.password_file),
            ca=path(table.ca),
            cert=path(table.cert),
            key=path(table.key),
            named="shared-index.",
        )
    )
    tasks = []
    if sweeps:
        owner = f"router on {socket.gethostname()} {secrets.token_hex(4)}"
        sweeper = Sweeper(redis, KeyNames(table.prefix), owner=owner, clock=time.monotonic)
        tasks = [
            kept(Work("sweeping the shared index", sweeper.run)),
            watched(log_server_warnings(redis), "looking at the Redis server"),
        ]
    try:
        yield redis
    finally:
        await cancel(tasks)
        await redis.close()


@asynccontextmanager
async def asking(table: config.SharedIndexTable, redis: Redis) -> AsyncIterator[RemoteIndex]:
    """Provide look-ups of prompts in Redis while the context is open (shared mode)."""
    names = KeyNames(table.prefix)
    remote = RemoteIndex(
        redis,
        names,
        Registry(redis, names, time.monotonic),
        deadline=table.deadline_seconds,
        stale_after=table.stale_seconds,
        clock=time.monotonic,
    )
    task = kept(Work("asking the shared index", remote.run, remote.failed))
    try:
        yield remote
    finally:
        await cancel([task])
        await remote.close()


@asynccontextmanager
async def shared(
    table: config.SharedIndexTable, folder: Path, ingest: Ingest, settled: Callable[[str], None]
) -> AsyncIterator[None]:
    """Let `ingest` have ranks of the shared index in a context: copies of them in replica mode.

    `settled` is called once, with a sentence: all pods are copied, or a reading has failed.
    """
    log.info(
        "shared index at %s, prefix %s, mode %s%s",
        table.url.partition("://")[2], table.prefix, table.mode,
        ", bookings are shared" if table.share_bookings else "",
    )  # fmt: skip
    if table.mode != "replica":
        yield
        return
    async with reached(table, folder, sweeps=not is_asked_by_answers(table)) as redis:
        names, poll = KeyNames(table.prefix), table.poll_seconds
        replica = ingest.replica = Replica(
            redis, names, poll_seconds=poll, clock=time.monotonic, settled=settled
        )
        task = kept(Work("copying the shared index", replica.run, replica.failed))
        try:
            yield
        finally:
            await cancel([task])
