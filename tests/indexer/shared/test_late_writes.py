"""Writes that come late, or are refused while reads work, on real servers: nobody believes what is old."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest
from tests.indexer.shared.timed_publisher import POD, Follower
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import LATE, Registry
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.machine import Writer
from warmpath.indexer.shared.writer.run import write
from warmpath.indexer.trust import PROMISED_SECONDS, Level
from warmpath.process.tasks import cancel, watched

PATIENCE = 40.0
TIMEOUT = 10.0
"""Seconds: longer than any write here is late."""


class Routers:
    """A publisher that writes through a relay, and two routers that read: one copies, one looks up."""

    def __init__(self, ranks: list[Rank], ingests: list[Ingest], publisher: Follower) -> None:
        self.ranks = ranks
        self._ingests = ingests
        self._publisher = publisher
        self._engine = EngineModel()

    def serve(self) -> None:
        message = self._engine.store((0, 1, 2, 3))
        assert message
        self._publisher.heard(message)

    def levels(self) -> set[Level]:
        for ingest in self._ingests:
            ingest.expire()
        return {rank.trust.level for rank in self.ranks}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def exact(self) -> None:
        await self.until(lambda: self.levels() == {Level.EXACT})


@asynccontextmanager
async def routers(reading: str, writing: RedisSettings, prefix: str) -> AsyncIterator[Routers]:
    names = KeyNames(prefix, buckets=3)
    redis, writes = await connect(RedisSettings(reading)), await connect(writing)
    publisher, news = Follower(time.monotonic), asyncio.Event()
    writer = Writer(
        names, publisher.cache, owner="o", keyspace="k", model="m", watch="",
        lease=60.0, bucket_life=600.0, clock=time.monotonic,
    )  # fmt: skip
    remote = RemoteIndex(
        redis, names, Registry(redis, names, time.monotonic), deadline=5.0, stale_after=600.0,
        clock=time.monotonic,
    )  # fmt: skip
    replica = Replica(redis, names, poll_seconds=0.05, clock=time.monotonic)
    copied, asked = (
        new_ingest(lambda: ArrayIndex(1 << 20), stale_after=600.0, clock=time.monotonic, remote=one)
        for one in (None, remote)
    )  # fmt: skip
    copied.replica = replica
    copy = copied.watch(POD, 0)
    replica.add(POD, [copy], "k")
    ranks: list[Rank] = [copy, asked.add_shared(POD, 0, keyspace="k", ranks=1)]
    made = Routers(ranks, [copied, asked], publisher)
    made.serve()
    tasks = [
        watched(write(writes, writer, news, timeout=TIMEOUT), "writing"),
        watched(follow(publisher, news), "following"),
        watched(replica.run(), "copying"),
        watched(remote.run(), "asking"),
    ]
    try:
        await made.exact()
        yield made
    finally:
        await cancel(tasks)
        await remote.close()
        await redis.close()
        await writes.close()


async def follow(publisher: Follower, news: asyncio.Event) -> None:
    """Turn as the loop of a publisher does."""
    while True:
        publisher.rank.tick()
        publisher.cache.collect()
        publisher.cache.pulse.beat(time.monotonic())
        news.set()
        await asyncio.sleep(0.02)


@pytest.mark.deep
async def test_a_write_that_is_late_confirms_nothing_newer(
    server: RedisServer, prefix: str
) -> None:
    with Relay(server.port) as relay:
        async with routers(server.url, RedisSettings(relay.url), prefix) as made:
            record = KeyNames(prefix).record(POD)
            relay.latency = PROMISED_SECONDS + 1
            await made.until(lambda: made.levels() == {Level.DEGRADED})
            for rank in made.ranks:
                assert rank.trust.reason == LATE
            # Writes go on to arrive, each of them as late.
            seen = set()
            while len(seen) < 3:
                said = server.ask("HGET", record, "sound")
                assert isinstance(said, bytes)
                if said not in seen and len(seen) == 2:
                    assert int(said.partition(b":")[2]) >= 1000 * PROMISED_SECONDS
                seen.add(said)
                assert made.levels() == {Level.DEGRADED}
                await asyncio.sleep(0.05)
            relay.latency = 0.0
            await made.exact()


async def test_where_writes_are_refused_and_reads_work_nothing_old_is_exact(
    server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    name = prefix.strip(":")
    server.ask("ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all")
    password = tmp_path / "password"
    password.write_text("secret")
    settings = RedisSettings(server.url, user=name, password_file=str(password))
    try:
        async with routers(server.url, settings, prefix) as made:
            server.ask("ACL", "SETUSER", name, "-@write", "-eval", "-evalsha")
            refused_at = time.monotonic()
            made.serve()
            await made.until(lambda: Level.EXACT not in made.levels())
            while time.monotonic() < refused_at + PROMISED_SECONDS + 0.5:
                now = time.monotonic()
                assert now < refused_at + PROMISED_SECONDS or Level.EXACT not in made.levels()
                await asyncio.sleep(0.01)
            server.ask("ACL", "SETUSER", name, "+@all")
            await made.exact()
    finally:
        server.ask("ACL", "DELUSER", name)
